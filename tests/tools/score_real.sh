#!/bin/sh
# score_real.sh SCORE_ENGINE smollm2|gemma3 [OPTION...] - scores a real model, which it fetches as ./quickstart does. Skipped
# where the reference data is missing or the model can not be had; with CI=true a missing model is a failure.
set -eu
score=$1
name=$2
shift 2
source=${FASTCHAT_SOURCE:-.}
data=${FASTCHAT_GOLDEN:-$source/../shared/golden}/engine/real
if [ ! -f "$data/summary.json" ]; then
    echo "the reference data is not there: $data"
    exit 77
fi
case $name in
smollm2) model=${FASTCHAT_SMOLLM2:-} ;;
*) model=${FASTCHAT_GEMMA3:-} ;;
esac
if [ -z "$model" ] && ! model=$("$source/tools/fetch-model.sh" "$name"); then
    [ "${CI:-}" = true ] && exit 1
    exit 77
fi
exec "$score" "$model" "$data" "$name" "$@"
