#!/bin/bash
# Does clang find an access without its lock?  tools/check/thread_safety.sh
# All sources are compiled with -Wthread-safety -Werror where CMake builds by clang (.ci/run cmake). This shows that
# it would fail: one source as it is, which must compile, and without each of its locks in turn, which must not.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"

source=vmm/base/fork_closed_fd.cpp
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
ln -s "$STILLMAP_ROOT" "$work/stillmap"
compiles() { clang++ -std=c++20 -Wthread-safety -Werror -fsyntax-only -I "$work" "$1" 2>"$work/errors"; }

cd "$STILLMAP_ROOT"
compiles "$source" || die "$source does not compile: $(<"$work/errors")"
planted=0
# Not those of destructors and move constructors, which clang does not analyse.
for line in $(grep -n 'lock_guard lock(' "$source" | cut -d: -f1); do
  sed "${line}d" "$source" >"$work/planted.cpp"
  if compiles "$work/planted.cpp"; then continue; fi
  grep -q 'thread-safety' "$work/errors" || die "line $line: another error: $(<"$work/errors")"
  planted=$((planted + 1))
done
((planted > 0)) || die "clang compiles $source without its locks"
say "thread safety: $planted accesses without their lock are errors"
