#!/bin/sh
# cross-arm64.sh [--keep DIR] [COMMAND…] - makes a Debian 12 root that cross-compiles for arm64, builds this tree in it, runs the
# unit tests under qemu-user, those of the kernels on a processor for each table, three records of a real model where its file is
# here, and builds the Debian package, whose programs must start; with COMMAND, runs that there instead (needs root, the package
# mmdebstrap and Linux 6.7).
#
#     tools/cross-arm64.sh
#     tools/cross-arm64.sh --keep DIR             the root stays in DIR and is used again the next time
#     tools/cross-arm64.sh --keep DIR meson test -C /srv/build --no-rebuild -v gen-model
#     tools/cross-arm64.sh --keep DIR env QEMU_CPU=cortex-a53 /srv/build/tests/gen/test-gen-kernels
#
# Nothing of it touches the machine: foreign packages are in the root only, and that arm64 programs start each other (Criterion's
# do) is told to a binfmt_misc of a user namespace of its own, which ends with the command. Inside, the tree is /srv/fastchat,
# read-only, the build /srv/build, golden data of $FASTCHAT_GOLDEN or beside the tree is in the same place relative to it, and
# SmolLM2 (tools/fetch-model.sh), where $FASTCHAT_SMOLLM2 or the cache has it, is /srv/smollm2.gguf.
# FASTCHAT_EMULATED=1 tells tests what runs them; those that need a system call that qemu-user lacks skip.
set -eu

# ---- inside the namespaces, as their root: cross-arm64.sh --inside ROOT SOURCE GOLDEN MODEL COMMAND… ----
if [ "${1-}" = --inside ]; then
    root=$2
    until [ "$(id -u)" = 0 ]; do sleep 0.1; done        # until the one outside has written the maps
    mount --bind -o ro "$3" "$root/srv/fastchat"
    [ ! -d "$4" ] || mount --bind -o ro "$4" "$root/srv/shared/golden"
    if [ -f "$5" ]; then
        : >"$root/srv/smollm2.gguf"
        mount --bind -o ro "$5" "$root/srv/smollm2.gguf"
    fi
    shift 5
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t binfmt_misc binfmt_misc "$root/proc/sys/fs/binfmt_misc" || {
        echo "cross-arm64: binfmt_misc of one's own needs Linux 6.7" >&2
        exit 1
    }
    # 64-bit little-endian ELF, executable or shared object, of machine 183; P: argv[0] is kept.
    printf %s ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:P' \
        >"$root/proc/sys/fs/binfmt_misc/register"
    exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 \
        FASTCHAT_EMULATED=1 sh -c 'cd /srv/fastchat && exec "$@"' sh "$@"
fi

cd "$(dirname "$0")/.."
src=$(pwd)
[ "$(id -u)" = 0 ] || { echo "cross-arm64: needs root" >&2; exit 1; }

work=
running=
leave() {
    status=$?
    [ -z "$running" ] || kill -KILL "$running" 2>/dev/null || true
    [ -z "$work" ] || rm -rf --one-file-system "$work"
    exit "$status"
}
trap leave EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if [ "${1-}" = --keep ]; then
    [ $# -ge 2 ] || { echo "cross-arm64: --keep needs a folder" >&2; exit 2; }
    mkdir -p "$2"
    folder=$(cd "$2" && pwd)
    shift 2
else
    work=$(mktemp -d)
    folder=$work
fi
root=$folder/root
smollm2=${FASTCHAT_SMOLLM2:-${FASTCHAT_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fastchat}/models/SmolLM2-135M-Instruct.Q4_1.gguf}

# The build's libraries are arm64's, all else is this machine's.
include=build-essential,crossbuild-essential-arm64,debhelper,qemu-user,libcriterion-dev:arm64,dbus-daemon,openssl,procps,python3
for package in $(sed -n 's/^build="\(.*\)"$/\1/p' tools/deps.sh); do
    case $package in
    libc6-dev) ;;
    lib*-dev) include=$include,$package:arm64 ;;
    *) include=$include,$package ;;
    esac
done
if [ "$(cat "$folder/made" 2>/dev/null)" != "$include" ]; then
    echo "cross-arm64: making the root"
    rm -rf --one-file-system "$root"
    mmdebstrap --quiet --mode=root --variant=apt --skip=check/empty --dpkgopt=force-unsafe-io --architectures=amd64,arm64 \
        --include="$include" bookworm "$root"
    mkdir -p "$root/srv/fastchat" "$root/srv/shared/golden"
    echo "$include" >"$folder/made"
fi

# In a user namespace with all users of this one, for tests change theirs.
inside() {      # inside COMMAND…
    unshare --user --mount --propagation private --pid --fork --kill-child \
        sh "$src/tools/cross-arm64.sh" --inside "$root" "$src" "${FASTCHAT_GOLDEN:-$src/../shared/golden}" "$smollm2" "$@" &
    running=$!
    while [ "$(readlink /proc/$running/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.1; done
    for map in uid_map gid_map; do
        awk '{ print $1, $1, $3 }' /proc/self/$map >/proc/$running/$map
    done
    code=0
    wait "$running" || code=$?
    running=
    return $code
}

if [ $# -gt 0 ]; then
    inside "$@"
    exit 0
fi
[ -e "$root/srv/build/build.ninja" ] || inside meson setup /srv/build --cross-file tools/arm64.ini >/dev/null || {
    tail -n 20 "$root/srv/build/meson-logs/meson-log.txt" >&2
    exit 1
}
inside ninja -C /srv/build --quiet
# What needs neither the whole service nor a real model; qemu-user's own processor has everything.
inside env FASTCHAT_BEST_ISA=neon-i8mm meson test -C /srv/build --no-rebuild --print-errorlogs --no-suite system --no-suite tools --no-suite score --timeout-multiplier 10

# Those of others must not meet an instruction that they lack.
for best in cortex-a53:neon neoverse-n1:neon-dotprod; do
    echo "cross-arm64: kernels on ${best%:*}"
    inside env QEMU_CPU="${best%:*}" FASTCHAT_BEST_ISA="${best#*:}" \
        meson test -C /srv/build --no-rebuild --print-errorlogs --timeout-multiplier 10 gen-kernels gen-model
done
if [ -f "$smollm2" ] && [ -d "${FASTCHAT_GOLDEN:-../shared/golden}" ]; then
    echo "cross-arm64: three records of SmolLM2"
    inside env FASTCHAT_SMOLLM2=/srv/smollm2.gguf sh tests/tools/score_real.sh /srv/build/tests/tools/score-engine smollm2 --shortest 3
else
    echo "cross-arm64: SmolLM2 or its golden data is not here: nothing real was computed"
fi

echo "cross-arm64: the package"
rm -rf "$root/srv/package"
mkdir -p "$root/srv/package/fastchat"
git ls-files -z | tar -c --null --files-from=- | tar -x -C "$root/srv/package/fastchat"
# shellcheck disable=SC2016
inside sh -ec '
    cd /srv/package/fastchat
    DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)" dpkg-buildpackage -a arm64 -Pcross,nocheck -b -uc >../log 2>&1 || { tail -n 30 ../log >&2; exit 1; }
    cd ..
    dpkg-deb -x fastchat_*_arm64.deb installed
    installed/usr/bin/fastchat --version
    installed/usr/sbin/fastchatd --version'
