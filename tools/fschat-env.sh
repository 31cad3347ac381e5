#!/bin/sh
# fschat-env.sh - makes a Python environment with the real FastChat (no torch) and prints its python's path.
#
# Tests and bench only: they let the reference's own controller, API server and worker base class speak with ours. It lies in
# $FASTCHAT_CACHE/fschat (default: ~/.cache/fastchat/fschat) and is made anew when tools/fschat-requirements.txt, which
# pins every version and hash, or the interpreter has changed. One that was left half made is made again.
set -eu
cd "$(dirname "$0")"

cache=${FASTCHAT_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/fastchat}
target=$cache/fschat
stamp=$target/made-of
log=$cache/fschat.log

fail() { echo "fschat-env: $*" >&2; exit 1; }

base=$(command -v python3.11 || command -v python3) || fail "there is no python3"
version=$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1 || true)
[ "$version" = 3.11 ] || fail "the pinned packages need Python 3.11, but $base is ${version:-no working Python}"

mkdir -p "$cache" || fail "can not make the folder $cache"
exec 9>"$cache/fschat.lock" || fail "can not write to $cache"
flock 9         # whoever comes second finds it made

want="$version $(sha256sum <fschat-requirements.txt)"
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$target/bin/python" -c 'import fastchat' 2>/dev/null; then
    echo "$target/bin/python"
    exit 0
fi

free=$(df -Pk "$cache" | awk 'NR==2{print $4}')
[ "${free:-0}" -gt 500000 ] || fail "less than 500 MB free for $target"
rm -rf "$target" || fail "can not remove the old $target"
echo "making $target (about 40 packages, 30 MB)" >&2
"$base" -m venv "$target" >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "python3 could not make a virtual environment (on Debian it needs the package python3-venv)"
}
"$target/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps --only-binary :all: --require-hashes \
    -r fschat-requirements.txt >"$log" 2>&1 || {
    tail -n 10 "$log" >&2
    fail "pip could not install fschat-requirements.txt (its last lines are above)"
}
LOGDIR='' "$target/bin/python" -c 'import fastchat.serve.controller, fastchat.serve.openai_api_server, fastchat.serve.base_model_worker, openai' \
    >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "FastChat was installed but can not be imported"
}
printf '%s\n' "$want" >"$stamp"
rm -f "$log"
echo "$target/bin/python"
