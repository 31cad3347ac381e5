#!/bin/sh
# score_real.sh SCORE_ENGINE smollm2|gemma3|tiny [OPTION...] - scores a real model, which it fetches as ./quickstart does, or the
# tiny checkpoints that every family has. Skipped where the reference data is missing or the model can not be had; with CI=true a
# missing model is a failure.
set -eu
score=$1
name=$2
shift 2
source=${FASTCHAT_SOURCE:-.}
golden=${FASTCHAT_GOLDEN:-$source/../shared/golden}/engine
if [ ! -f "$golden/real/summary.json" ]; then
    echo "the reference data is not there: $golden"
    exit 77
fi
case $name in
tiny)
    for t in gemma2 gemma3 llama llama-rope-llama3 llama-rope-yarn llama-tied-bias qwen2 qwen3; do
        set -- "$@" "$golden/tiny/$t"
    done
    exec "$score" --tiny "$@"
    ;;
smollm2) model=${FASTCHAT_SMOLLM2:-} ;;
*) model=${FASTCHAT_GEMMA3:-} ;;
esac
if [ -z "$model" ] && ! model=$("$source/tools/fetch-model.sh" "$name"); then
    [ "${CI:-}" = true ] && exit 1
    exit 77
fi
exec "$score" "$model" "$golden/real" "$name" "$@"
