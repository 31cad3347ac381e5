#!/bin/sh
# check.sh - what ./check runs.
#
#   ./check            the ordinary suite: build plain and with ASan + UBSan, layers, every test in both builds, quickstart
#   ./check --quick    the plain build and its tests, without those that start the whole service
#   ./check --all      the ordinary suite, the fault table ten times with a thousand kills (an hour), all programs under
#                      valgrind, a build with clang and fuzzers, the system tests on a static build, and both commands of
#                      the README in a fresh minimal Debian root, as root and as an ordinary user with sudo (needs root)
#
# Ends with "N passed, N failed, N skipped" over all of them.
set -eu
cd "$(dirname "$0")/.."

mode=ordinary
case "${1-}" in
"") ;;
--quick) mode=quick ;;
--all) mode=all ;;
--help | -h) sed -n '2,10s/^# \{0,1\}//p' tools/check.sh; exit 0 ;;
*) echo "check: unknown argument '$1' (see ./check --help)" >&2; exit 2 ;;
esac

results=$(mktemp)
trap 'rm -f "$results"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
say() { printf '\n== %s\n' "$*"; }
step() {        # step NAME COMMAND… - counts as one test
    name=$1
    shift
    say "$name"
    if "$@"; then
        echo "P 1 $name" >>"$results"
    else
        echo "F 1 $name" >>"$results"
        echo "check: FAILED: $name" >&2
    fi
}
build() {       # build DIR MESON-OPTIONS…
    dir=$1
    shift
    if [ -f "$dir/build.ninja" ]; then
        meson configure "$dir" -Dtests=true "$@" >/dev/null || return 1
    else
        meson setup "$dir" "$@" >/dev/null || { tail -n 20 "$dir/meson-logs/meson-log.txt" >&2; return 1; }
    fi
    ninja -C "$dir" --quiet || return 1
}
run_tests() {   # run_tests DIR MESON-TEST-OPTIONS… - adds the counts of every case
    dir=$1
    shift
    rm -f "$dir/meson-logs/testlog.json"
    meson test -C "$dir" --no-rebuild --print-errorlogs "$@" || true
    python3 tools/count_tests.py "$dir/meson-logs/testlog.json" >>"$results" || echo "F 1 $dir: no test log" >>"$results"
}

say "packages"
./tools/deps.sh build fetch test

say "default model"
if FASTCHAT_SMOLLM2=$(./tools/fetch-model.sh); then
    export FASTCHAT_SMOLLM2
else
    echo "check: tests that need the model can not run" >&2
    unset FASTCHAT_SMOLLM2
fi

step "layers: includes point down" python3 tools/layers.py .
step "build" build build
if [ "$mode" = quick ]; then
    run_tests build --no-suite system
else
    run_tests build
    step "build with ASan and UBSan" build build-asan -Db_sanitize=address,undefined -Db_lundef=false
    export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    run_tests build-asan --timeout-multiplier 4
    unset ASAN_OPTIONS UBSAN_OPTIONS
    step "quickstart" ./quickstart --once
fi
if [ "$mode" = all ]; then
    ./tools/deps.sh root valgrind
    say "faults, ten rounds of each and a thousand kills"
    export FASTCHAT_CHAOS=long
    run_tests build --timeout-multiplier 20 system-chaos
    unset FASTCHAT_CHAOS
    say "valgrind"
    run_tests build --suite valgrind
    step "build with clang and fuzzers" env CC=clang-14 sh -c '[ -f build-clang/build.ninja ] || meson setup build-clang -Dfuzz=true >/dev/null; ninja -C build-clang --quiet'
    step "archives for the static build" tools/static-deps.sh build-deps
    step "static build" build build-static -Dlinkage=static -Ddeps_prefix=build-deps
    run_tests build-static --suite system
    step "quickstart in a fresh root" tools/fresh-root.sh ./quickstart --once
    step "quickstart in a fresh root, as an ordinary user" env FASTCHAT_ROOT_USER=1 tools/fresh-root.sh ./quickstart --once
    step "check in a fresh root" tools/fresh-root.sh ./check
fi

count() { awk -v k="$1" '$1==k{n+=$2} END{print n+0}' "$results"; }
passed=$(count P)
failed=$(count F)
skipped=$(count S)
if [ "$failed" != 0 ]; then
    say "failed"
    awk '$1=="F"{n=$2; $1=""; $2=""; print n " in" $0}' "$results"
fi
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
