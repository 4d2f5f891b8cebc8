#!/bin/bash
# Runs clang-tidy with the checks of .clang-tidy over all C++ sources, or over those named.
#   tools/check/tidy.sh [-p BUILD] [FILE...]
# BUILD is a CMake build folder; without one, the default is out/tidy, which is configured for it. Needs
# clang-tidy 14 (Debian: clang-tidy-14). Exits 1 where clang-tidy has something to say.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/build/modules.sh

build=
if [[ ${1:-} == -p ]]; then
  build=${2:?usage: tools/check/tidy.sh [-p BUILD] [FILE...]}
  shift 2
fi
tidy=$(type -P clang-tidy-14 || type -P clang-tidy) || {
  echo "tidy: no clang-tidy; on Debian: apt-get install clang-tidy-14" >&2
  exit 1
}
if [[ ! $build ]]; then
  build=out/tidy
  python=OFF
  [[ ! -e .cache/nanobind/cmake ]] || python=ON # which tools/setup.sh puts there
  cmake -S . -B "$build" -G Ninja -DSTILLMAP_BUILD_BENCH=ON -DSTILLMAP_BUILD_PYTHON="$python" >/dev/null
  cmake --build "$build" --target stillmap_manifest >/dev/null
fi
cmake -B "$build" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null

# The sources that the build compiles, each once.
mapfile -t known < <(python3 - "$build/compile_commands.json" "$PWD" <<'PYTHON'
import json, os, sys
root = os.path.realpath(sys.argv[2]) + "/"
files = {os.path.realpath(os.path.join(entry["directory"], entry["file"]))
         for entry in json.load(open(sys.argv[1]))}
print("\n".join(sorted(f[len(root):] for f in files if f.startswith(root))))
PYTHON
)
files=("$@")
if ((!$#)); then
  folders=$(IFS='|'; printf '%s' "${STILLMAP_FOLDERS[*]}")
  mapfile -t files < <(printf '%s\n' "${known[@]}" | grep -E "^($folders)/")
fi
filter="($(IFS='|'; printf '%s' "${STILLMAP_FOLDERS[*]}"))/.*"

printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" "$tidy" -p "$build" --quiet --header-filter="$filter" \
    --warnings-as-errors='*' || {
    echo "tidy: clang-tidy found something" >&2
    exit 1
  }
echo "tidy: ${#files[@]} files are clean"
