#!/bin/sh
# fresh-root.sh COMMAND… - makes a minimal Debian 12 root with nothing installed but apt, puts a clone of HEAD of this tree
# into it, and runs COMMAND there in the clone (needs root and the package mmdebstrap).
#
#     tools/fresh-root.sh ./quickstart --once
#
# FASTCHAT_ROOT_USER=1 runs it as an ordinary user with sudo instead of as root. A certificate bundle that the environment
# names (SSL_CERT_FILE, for machines behind a proxy that has one of its own) is taken along. Golden data of
# $FASTCHAT_GOLDEN or beside the tree is shown read-only in the same place relative to the clone.
set -eu
cd "$(dirname "$0")/.."
src=$(pwd)
[ "$(id -u)" = 0 ] || { echo "fresh-root: needs root" >&2; exit 1; }
[ $# -gt 0 ] || { echo "fresh-root: which command?" >&2; exit 2; }

work=$(mktemp -d)
root=$work/root
mounted=
leave() {
    code=$?
    for m in $mounted; do umount -l "$m" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap leave EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

echo "fresh-root: making a minimal root"
include=ca-certificates
[ -z "${FASTCHAT_ROOT_USER-}" ] || include=$include,sudo
mmdebstrap --quiet --mode=root --variant=apt --skip=check/empty --dpkgopt=force-unsafe-io --include="$include" bookworm "$root"

# A mount of its own, as a machine's root is one: programs in it may make namespaces of mounts.
mount --bind "$root" "$root"
mounted=$root
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
bundle=${SSL_CERT_FILE:-${CURL_CA_BUNDLE:-}}
certs=
if [ -n "$bundle" ] && [ -f "$bundle" ]; then
    cp -L "$bundle" "$root/etc/fastchat-test-certs.pem"
    certs="SSL_CERT_FILE=/etc/fastchat-test-certs.pem PIP_CERT=/etc/fastchat-test-certs.pem"
fi
for m in proc sys dev; do
    mount --rbind "/$m" "$root/$m"
    mount --make-rslave "$root/$m"
    mounted="$root/$m $mounted"
done
mkdir -p "$root/srv/work"
git clone -q "$src" "$root/srv/work/fastchat"
rm -f "$root/srv/work/fastchat/.git/objects/info/alternates"
golden=${FASTCHAT_GOLDEN:-$src/../shared/golden}
if [ -d "$golden" ]; then
    mkdir -p "$root/srv/work/shared/golden"
    mount --bind -o ro "$golden" "$root/srv/work/shared/golden"
    mounted="$root/srv/work/shared/golden $mounted"
fi
run="cd /srv/work/fastchat && exec env HOME=\"\$HOME\" $certs ${CI:+CI=$CI} \"\$@\""
if [ -n "${FASTCHAT_ROOT_USER-}" ]; then
    chroot "$root" useradd -m -s /bin/sh somebody
    echo "somebody ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/somebody"
    chroot "$root" chown -R somebody /srv/work/fastchat
    echo "fresh-root: as an ordinary user: $*"
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/somebody LC_ALL=C.UTF-8 \
        setpriv --reuid=somebody --regid=somebody --init-groups sh -c "$run" sh "$@"
else
    echo "fresh-root: as root: $*"
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh -c "$run" sh "$@"
fi
