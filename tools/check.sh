#!/bin/sh
# check.sh - what ./check runs.
#
#   ./check            the ordinary suite: build plain and with ASan + UBSan, layers, every test in both builds, quickstart; as
#                      root also the packages, installed on a Debian that boots in a container
#   ./check --quick    the plain build and its tests, without those that start the whole service
#   ./check --all      the ordinary suite, the fault table ten times with a thousand kills (an hour), 500 random schedules of
#                      an engine, the real models on every path of this machine and with every type of cache (an hour), all
#                      programs under valgrind, limits on an emulated machine, every fuzzer for some seconds, the threads under TSan,
#                      the system tests on a static build, both commands of the README in a fresh minimal Debian root, as root and as
#                      an ordinary user with sudo, and a cross build for arm64 whose unit tests run under qemu-user (needs root)
#   ./check --fuzz SECONDS [NAME…]
#                      every fuzzer of tests/fuzz, or those named, for SECONDS each, with clang, ASan and UBSan. What one finds is
#                      kept in build-fuzz/findings/NAME and counts as a failure; what it has learnt stays in build-fuzz/corpus/NAME
#   ./check --soak     the whole service under random load for half an hour ($FASTCHAT_SOAK_MINUTES says otherwise): nothing leaks,
#                      nothing stalls, everything is given back (tests/system/soak.py)
#   ./check --score [FOLDER [DOMAIN…]]
#                      how many records of golden data come out the same, a line a domain, with the names of those that do not.
#                      FOLDER: $FASTCHAT_GOLDEN, else ../shared/golden, else tests/golden; another one may have the same files
#
# Ends with "N passed, N failed, N skipped" over all of them.
set -eu
cd "$(dirname "$0")/.."

mode=ordinary
case "${1-}" in
"") ;;
--quick) mode=quick ;;
--all) mode=all ;;
--soak) mode=soak ;;
--fuzz)
    mode=fuzz
    fuzz_seconds=${2-}
    case $fuzz_seconds in
    "" | *[!0-9]* | 0*) echo "check: --fuzz needs a number of seconds (see ./check --help)" >&2; exit 2 ;;
    esac
    shift 2
    fuzz_names=$*
    ;;
--score)
    mode=score
    score_folder=${2:-${FASTCHAT_GOLDEN:-../shared/golden}}
    [ $# -ge 2 ] || [ -d "$score_folder" ] || score_folder=tests/golden
    [ -d "$score_folder" ] || { echo "check: there is no folder '$score_folder'" >&2; exit 2; }
    shift
    [ $# = 0 ] || shift
    score_domains=$*
    ;;
--help | -h) sed -n '2,${/^#/!q; s/^# \{0,1\}//p}' tools/check.sh; exit 0 ;;
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
build_fuzz() {
    [ -f build-fuzz/build.ninja ] || env CC=clang-14 meson setup build-fuzz -Dfuzz=true \
        -Db_sanitize=address,undefined -Db_lundef=false >/dev/null || return 1
    ninja -C build-fuzz --quiet "$@" || return 1
}
# fuzz SECONDS NAME - from its seeds and from what earlier runs have learnt. How long an input may take is generous, for the machine
# may have other load; the least that a parser promises is to end.
fuzz() {
    folder=build-fuzz/findings/$2
    mkdir -p "build-fuzz/corpus/$2" "$folder"
    if ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        "build-fuzz/tests/fuzz/fuzz-$2" -max_total_time="$1" -timeout=60 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$folder/" "build-fuzz/corpus/$2" "tests/fuzz/seeds/$2" >"build-fuzz/$2.log" 2>&1 </dev/null; then
        sed -n 's/^stat::number_of_executed_units: */executions: /p' "build-fuzz/$2.log"
        return 0
    fi
    tail -n 60 "build-fuzz/$2.log"
    echo "check: what fuzz-$2 found is in $folder, its log in build-fuzz/$2.log"
    return 1
}
fuzz_all() {    # fuzz_all SECONDS [NAME…]
    seconds=$1
    shift
    if [ $# = 0 ]; then
        for file in tests/fuzz/fuzz_*.c; do
            name=${file#tests/fuzz/fuzz_}
            set -- "$@" "${name%.c}"
        done
    fi
    for name in "$@"; do
        [ -f "tests/fuzz/fuzz_$name.c" ] || { echo "check: there is no tests/fuzz/fuzz_$name.c" >&2; exit 2; }
    done
    for target in "$@"; do      # step() has `name`
        step "fuzz $target" fuzz "$seconds" "$target"
    done
}
# The programs that have threads, at their tests. Criterion does not start under TSan: what only its tests reach of the engine is
# in gen-threads. Each process writes its reports to a file, so that none is lost with a child that was killed.
threads() {
    reports=$PWD/build-tsan/reports
    rm -rf "$reports"
    mkdir -p "$reports"
    export TSAN_OPTIONS="log_path=$reports/race exitcode=66 suppressions=$PWD/tools/tsan.supp print_suppressions=0"
    run_tests build-tsan --suite system --suite threads --timeout-multiplier 4
    unset TSAN_OPTIONS
    step "no race" no_reports "$reports"
}
no_reports() {  # no_reports FOLDER
    [ -z "$(ls "$1")" ] || { head -n 60 "$1"/*; return 1; }
}
finish() {      # the closing line; 0 when all is well
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
}
count() { awk -v k="$1" '$1==k{n+=$2} END{print n+0}' "$results"; }

if [ "$mode" = score ]; then
    ./tools/deps.sh build fetch test
    [ -f build/build.ninja ] || meson setup build >/dev/null
    ninja -C build --quiet tests/tools/score_text/score-text
    # shellcheck disable=SC2086
    build/tests/tools/score_text/score-text "$score_folder" $score_domains
    exit
fi

say "packages"
./tools/deps.sh build fetch test package

if [ "$mode" = fuzz ]; then
    step "build with clang and fuzzers" build_fuzz fuzzers
    # shellcheck disable=SC2086
    fuzz_all "$fuzz_seconds" $fuzz_names
    finish
    exit
fi

say "default model"
if FASTCHAT_SMOLLM2=$(./tools/fetch-model.sh); then
    export FASTCHAT_SMOLLM2
else
    echo "check: tests that need the model can not run" >&2
    unset FASTCHAT_SMOLLM2
fi

if [ "$mode" = soak ]; then
    step "build" build build
    step "soak" env FASTCHAT_SOURCE="$PWD" FASTCHAT_BUILD="$PWD/build" python3 tests/system/soak.py
    finish
    exit
fi

step "layers: includes point down" python3 tools/layers.py .
step "build" build build
if [ "$mode" = quick ]; then
    run_tests build --no-suite system --no-suite container
else
    [ "$(id -u)" != 0 ] || ./tools/deps.sh package container    # nobody else can boot a container
    run_tests build
    step "build with ASan and UBSan" build build-asan -Db_sanitize=address,undefined -Db_lundef=false
    export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    run_tests build-asan --timeout-multiplier 4
    unset ASAN_OPTIONS UBSAN_OPTIONS
    step "quickstart" ./quickstart --once
fi
if [ "$mode" = all ]; then
    ./tools/deps.sh root valgrind container vm
    say "faults, ten rounds of each and a thousand kills"
    export FASTCHAT_CHAOS=long
    run_tests build --timeout-multiplier 20 system-chaos
    unset FASTCHAT_CHAOS
    say "random schedules, 500 of them"
    export FASTCHAT_SCHEDULES=500
    run_tests build --timeout-multiplier 4 gen-schedules
    unset FASTCHAT_SCHEDULES
    say "real models on every path of this machine"
    run_tests build --suite score
    say "valgrind"
    run_tests build --suite valgrind
    say "limits, devices and the clock on an emulated machine"
    run_tests build --suite vm
    step "build with clang and fuzzers" build_fuzz
    fuzz_all 10
    step "build with TSan" build build-tsan -Db_sanitize=thread -Db_lundef=false
    threads
    step "archives for the static build" tools/static-deps.sh build-deps
    step "static build" build build-static -Dlinkage=static -Ddeps_prefix=build-deps
    run_tests build-static --suite system
    step "static package" env FASTCHAT_DEPS="$PWD/build-deps" FASTCHAT_BUILD="$PWD/build" python3 tests/packaging/test_packages.py static
    step "static package in place of the other" env FASTCHAT_DEPS="$PWD/build-deps" FASTCHAT_BUILD="$PWD/build" python3 tests/container/test_static.py
    step "quickstart in a fresh root" tools/fresh-root.sh ./quickstart --once
    step "quickstart in a fresh root, as an ordinary user" env FASTCHAT_ROOT_USER=1 tools/fresh-root.sh ./quickstart --once
    step "check in a fresh root" tools/fresh-root.sh ./check
    step "arm64: cross build, unit tests under qemu-user, package" tools/cross-arm64.sh
fi

finish
