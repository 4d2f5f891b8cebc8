#!/bin/bash
# Is every C++ file as clang-format 14 would write it?  tools/check/format.sh [--fix]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
source tools/build/modules.sh

formatter=$(type -P clang-format-14 || type -P clang-format) || {
  echo "format: no clang-format; on Debian: apt-get install clang-format-14" >&2
  exit 1
}
mapfile -t files < <(find "${STILLMAP_FOLDERS[@]}" -name '*.cpp' -o -name '*.h' -o -name '*.c' | sort)
((${#files[@]})) || {
  echo "format: no files to check" >&2
  exit 1
}
if [[ ${1:-} == --fix ]]; then
  "$formatter" -i "${files[@]}"
else
  printf '%s\0' "${files[@]}" | xargs -0 -n 40 -P "$(nproc)" "$formatter" --dry-run -Werror || {
    echo "format: run tools/check/format.sh --fix" >&2
    exit 1
  }
  echo "format: ${#files[@]} files are clean"
fi
