#!/bin/bash
# Runs clang-tidy with the checks of .clang-tidy over all C++ sources, or over those named.
#   tools/check/tidy.sh [-p BUILD] [FILE...]
# BUILD is a CMake build folder; the default is the one that tools/compile_commands.sh makes. Needs
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
if [[ $build ]]; then
  cmake -B "$build" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
else
  tools/compile_commands.sh
  build=out/compile_commands
fi

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
