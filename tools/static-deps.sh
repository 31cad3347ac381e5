#!/bin/sh
# static-deps.sh [PREFIX] - builds the archives that -Dlinkage=static links and that Debian has not, or not in a usable form:
# libsystemd (Debian has none), libcurl (Debian's wants a dozen libraries that have no archive), cJSON (none).
# libconfig, PCRE2, OpenSSL and libcap are linked from Debian's own archives.
#
# They are built from Debian's source packages, so that they carry its security fixes; PREFIX/VERSIONS says which versions.
# PREFIX is build-deps if not given. What is there already is kept: to get newer versions, remove PREFIX and run this again.
#
# Sources come through apt with a configuration of its own in a temporary folder: the system's package lists stay untouched.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${1:-build-deps}"
prefix=$(cd "${1:-build-deps}" && pwd)
recipe=$(sha256sum <tools/static-deps.sh | cut -c 1-16)
if grep -qx "recipe $recipe" "$prefix/VERSIONS" 2>/dev/null; then
    echo "static-deps: $prefix is complete ($(grep -v '^recipe' "$prefix/VERSIONS" | tr '\n' ',' | sed 's/,$//; s/,/, /g'))"
    exit 0
fi
./tools/deps.sh build static

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
log=$work/log
quietly() {     # quietly WHAT COMMAND… - its output is shown only if it fails
    what=$1
    shift
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "static-deps: $what failed (its last lines are above)" >&2
        exit 1
    fi
}

# Where the system gets packages from, asked for sources instead.
mkdir -p "$work/etc/parts" "$work/state/lists/partial" "$work/cache/archives/partial" "$work/src"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ ! -f "$list" ] || sed -n 's/^deb[[:space:]]/deb-src /p' "$list" >>"$work/etc/sources.list"
done
for list in /etc/apt/sources.list.d/*.sources; do
    [ ! -f "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/etc/parts/${list##*/}"
done
touch "$work/etc/sources.list"
cat >"$work/apt.conf" <<EOF
Dir::Etc::sourcelist "$work/etc/sources.list";
Dir::Etc::sourceparts "$work/etc/parts";
Dir::State::lists "$work/state/lists";
Dir::Cache "$work/cache";
EOF
export APT_CONFIG="$work/apt.conf" DEBIAN_FRONTEND=noninteractive
if [ "$(id -u)" = 0 ]; then             # as root, apt downloads as its own user, which must get in
    chmod 755 "$work"
    chown _apt "$work/src" "$work/state/lists/partial" "$work/cache/archives/partial"
fi
echo "static-deps: fetching the sources of cjson, curl and systemd"
quietly "apt-get update" apt-get -q update
cd "$work/src"
quietly "apt-get source" apt-get -q source cjson curl systemd
folder() { find "$work/src" -mindepth 1 -maxdepth 1 -type d -name "$1-[0-9]*"; }
version() { (cd "$(folder "$1")" && dpkg-parsechangelog -S Version); }

cflags="-O2 -fPIC -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffunction-sections -fdata-sections"
include=$prefix/include
lib=$prefix/lib
rm -rf "$include" "$lib" "$prefix/VERSIONS"
mkdir -p "$include/cjson" "$include/systemd" "$lib"

echo "static-deps: cjson $(version cjson)"
cd "$(folder cjson)"
# shellcheck disable=SC2086
quietly "building cjson" gcc $cflags -c cJSON.c -o cJSON.o
ar rcs "$lib/libcjson.a" cJSON.o
cp cJSON.h "$include/cjson/"

# Only what http_client.h needs: HTTP and HTTPS over OpenSSL, IPv6, Unix sockets, names resolved in a thread.
echo "static-deps: curl $(version curl)"
cd "$(folder curl)"
quietly "configuring curl" ./configure --disable-shared --enable-static --disable-dependency-tracking --with-openssl \
    --with-ca-bundle=/etc/ssl/certs/ca-certificates.crt --with-ca-path=/etc/ssl/certs \
    --enable-http --enable-ipv6 --enable-unix-sockets --enable-threaded-resolver --disable-ares \
    --disable-ftp --disable-file --disable-ldap --disable-ldaps --disable-rtsp --disable-dict --disable-telnet --disable-tftp \
    --disable-pop3 --disable-imap --disable-smb --disable-smtp --disable-gopher --disable-mqtt --disable-manual --disable-libcurl-option \
    --disable-alt-svc --disable-hsts --disable-ntlm --disable-tls-srp --disable-cookies --disable-debug --disable-curldebug \
    --without-zlib --without-brotli --without-zstd --without-libpsl --without-libidn2 --without-librtmp --without-libssh2 \
    --without-nghttp2 --without-gssapi CFLAGS="$cflags"
quietly "building curl" make -C lib V=0 libcurl.la
cp lib/.libs/libcurl.a "$lib/"
cp -r include/curl "$include/"
rm -f "$include"/curl/Makefile*

echo "static-deps: systemd $(version systemd)"
cd "$(folder systemd)"
off=
for o in acl apparmor audit blkid bzip2 curl dbus elfutils fdisk gcrypt gnutls idn kmod libcryptsetup libcurl libfido2 libidn libidn2 \
    libiptc lz4 microhttpd openssl p11kit pam pcre2 polkit pwquality qrencode seccomp selinux tpm2 xkbcommon xz zlib zstd \
    bpf-framework man html tests fuzz-tests gnu-efi link-udev-shared; do
    grep -q "^option('$o'" meson_options.txt && off="$off -D$o=false"
done
# shellcheck disable=SC2086
quietly "configuring systemd" env CFLAGS="$cflags" meson setup b --buildtype=plain -Dstatic-libsystemd=pic -Dmode=release $off
# version.h is not a declared dependency of the archive
quietly "building systemd" sh -c 'ninja -C b version.h && ninja -C b libsystemd.a'
# The archive is full of functions with everyday names. Joined to one object that shows only sd_*, no call of systemd's can end
# in a function of ours that happens to have the same name.
quietly "joining systemd" sh -c 'ld -r --whole-archive b/libsystemd.a -o systemd.o && objcopy --wildcard --keep-global-symbol="sd_*" systemd.o'
ar rcs "$lib/libsystemd.a" systemd.o
cp src/systemd/*.h "$include/systemd/"

# What may be done with what is inside: packages of static programs carry it.
mkdir -p "$prefix/copyright"
for p in cjson curl systemd; do cp "$(folder $p)/debian/copyright" "$prefix/copyright/$p"; done
for p in libcap-dev libconfig-dev libpcre2-dev libssl-dev libc6-dev; do cp -L "/usr/share/doc/$p/copyright" "$prefix/copyright/${p%-dev}"; done

{
    for p in cjson curl systemd; do echo "$p $(version $p)"; done
    for p in libcap-dev libconfig-dev libpcre2-dev libssl-dev libc6-dev; do dpkg-query -W -f '${Package} ${Version}\n' $p; done
    echo "recipe $recipe"
} >"$prefix/VERSIONS"
echo "static-deps: $prefix is complete"
