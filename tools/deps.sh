#!/bin/sh
# deps.sh [build|fetch|test|static|package|root|container|vm|valgrind]… - installs the Debian packages that building or testing
# needs and that are not there yet. Runs as root or through sudo; says what it installs.
set -eu

build="gcc libc6-dev meson ninja-build pkg-config libsystemd-dev libcurl4-openssl-dev libcjson-dev libconfig-dev libpcre2-dev libssl-dev node-llhttp ca-certificates"
fetch="python3 python3-pip"
test="libcriterion-dev libpcre2-dev clang-14 libclang-rt-14-dev python3 python3-venv curl procps libfaketime openssl systemd dbus-daemon bash-completion man-db mandoc zsh"
static="dpkg-dev gperf make python3-jinja2 libcap-dev libmount-dev"
package="build-essential dpkg-dev debhelper fakeroot lintian apt-utils gnupg"
root="mmdebstrap"
container="dpkg-dev iproute2 mmdebstrap systemd-container zstd"
vm="e2fsprogs qemu-system-x86"
valgrind="valgrind libc6-dbg"

want=
for group in "$@"; do
    case $group in
    build) want="$want $build" ;;
    fetch) want="$want $fetch" ;;
    test) want="$want $test" ;;
    static) want="$want $static" ;;
    package) want="$want $package" ;;
    root) want="$want $root" ;;
    container) want="$want $container" ;;
    vm) want="$want $vm" ;;
    valgrind) want="$want $valgrind" ;;
    *) echo "deps.sh: unknown group '$group'" >&2; exit 2 ;;
    esac
done

missing=
for p in $want; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
else
    echo "deps.sh: these packages are missing and need root or sudo to be installed:$missing" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
for step in "update -q" "install -q -y --no-install-recommends$missing"; do
    # shellcheck disable=SC2086
    if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get $step >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "deps.sh: apt-get ${step%% *} failed (its last lines are above)" >&2
        exit 1
    fi
done
