#!/bin/bash
# Writes compile_commands.json, which clangd and other editors' tools read: every source with its flags, each by itself.
# Configures CMake in out/compile_commands; compiles nothing but one generated header.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

ensure_machine
ensure_packages cmake libgtest-dev ninja-build
build=$STILLMAP_ROOT/out/compile_commands
python=OFF
[[ ! -e $STILLMAP_ROOT/.cache/nanobind/cmake ]] || python=ON # which tools/setup.sh puts there
cmake -S "$STILLMAP_ROOT" -B "$build" -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DSTILLMAP_BUILD_TESTS=ON \
  -DSTILLMAP_BUILD_EXAMPLES=ON -DSTILLMAP_BUILD_BENCH=ON -DSTILLMAP_BUILD_PYTHON="$python" >/dev/null
cmake --build "$build" --target stillmap_manifest >/dev/null
ln -sfn out/compile_commands/compile_commands.json "$STILLMAP_ROOT/compile_commands.json"
say "compile_commands.json has $(grep -c '"file":' "$build/compile_commands.json") sources"
