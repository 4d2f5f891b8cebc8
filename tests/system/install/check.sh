#!/bin/bash
# Can other projects use an installed Stillmap? Builds and runs the same small program three ways.
#   tests/system/install/check.sh PREFIX     PREFIX: where `cmake --install` put Stillmap
# Prints one line per way, and exits 1 when one fails.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
root=$(cd "$here/../.." && pwd)
prefix=$(cd "${1:?usage: tests/system/install/check.sh PREFIX}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

hostcuda=$(find "$prefix" -path '*/stillmap/hostcuda/libcuda.so.1' | head -1)
pkgconfig=$(dirname "$(find "$prefix" -name stillmap.pc | head -1)")

with_cmake() {
  cmake -S "$here/cmake_consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" &&
    cmake --build "$work/cmake" &&
    ctest --test-dir "$work/cmake" --output-on-failure
}

with_pkgconfig() {
  make -C "$here/pkgconfig_consumer" OUT="$work" CXX="${CXX:-g++}" PKG_CONFIG_PATH="$pkgconfig" || return 1
  # Nothing names hostcuda: the library looks for it where it was installed.
  env -u STILLMAP_HOSTCUDA STILLMAP_DRIVER=host "$work/consumer"
}

with_bazel() {
  cd "$here/bazel_consumer" &&
    "$root/tools/bazel" test --test_output=errors //:consumer &&
    "$root/tools/bazel" shutdown
}

# The install must not put a libcuda.so.1 where a loader would take it for the real driver.
no_shadow() {
  [[ -n $hostcuda && ! -e $prefix/lib/libcuda.so.1 && ! -e $(dirname "$pkgconfig")/libcuda.so.1 ]]
}

failed=0
for way in no_shadow with_cmake with_pkgconfig with_bazel; do
  if ($way) >"$work/log" 2>&1; then
    echo "install: $way: ok"
  else
    sed 's/^/    /' "$work/log"
    echo "install: $way: failed"
    failed=1
  fi
done
exit $failed
