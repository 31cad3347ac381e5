#!/bin/sh
# score_smollm2.sh SCORE_ENGINE [OPTION...] - scores the default model, which it fetches as ./quickstart does. Skipped where
# the reference data is missing or the model can not be had; with CI=true a missing model is a failure.
set -eu
score=$1
shift
source=${FASTCHAT_SOURCE:-.}
data=${FASTCHAT_GOLDEN:-$source/../shared/golden}/engine/real
if [ ! -f "$data/summary.json" ]; then
    echo "the reference data is not there: $data"
    exit 77
fi
if ! model=${FASTCHAT_SMOLLM2:-$("$source/tools/fetch-model.sh")}; then
    [ "${CI:-}" = true ] && exit 1
    exit 77
fi
exec "$score" "$model" "$data" smollm2 "$@"
