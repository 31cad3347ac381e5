#!/bin/sh
# run.sh [--short | --full] [--out FILE] [--only SECTION,…] MODEL.gguf… - what docs/performance.md is made of.
#
# Builds what it needs with optimisation in build/, looks for the peer where peer.sh puts it ($FASTCHAT_PEER: the folder of its
# programs elsewhere) and measures both in the same run. --short, the default, ends within ten minutes. Tables on standard output;
# one JSON line a measurement, with its method, in FILE (build/bench.jsonl). Sections: run.py.
set -eu
cd "$(dirname "$0")/../.."
[ -f build/build.ninja ] || meson setup build >/dev/null
ninja -C build --quiet
FASTCHAT_BUILD=$PWD/build FASTCHAT_SOURCE=$PWD exec python3 tests/bench/run.py "$@"
