#!/bin/bash
# Does a Python name take another's place? Then the first one is lost: a class of tests, say.  tools/check/redefined.sh [FILE...]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

command -v pyflakes3 >/dev/null || {
  echo "redefined: no pyflakes3; on Debian: apt-get install pyflakes3" >&2
  exit 1
}
files=("$@")
((${#files[@]})) || mapfile -t files < <(git ls-files '*.py')
((${#files[@]})) || {
  echo "redefined: no files to check" >&2
  exit 1
}
# Its other messages know no exceptions.
found=$(pyflakes3 "${files[@]}" | grep -E 'redefinition of|could not compile|invalid syntax' || true)
[[ -z $found ]] || {
  echo "$found" >&2
  exit 1
}
echo "redefined: ${#files[@]} files are clean"
