#!/bin/bash
# Checks an installed Stillmap: what is in the prefix, and that projects of every kind can use it.
#   tests/system/install/check.sh PREFIX [CHECK...]     PREFIX: where `cmake --install` put Stillmap
# Prints a line for each check, and exits 1 where one failed.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
root=$(cd "$here/../../.." && pwd)
prefix=$(cd "${1:?usage: tests/system/install/check.sh PREFIX [CHECK...]}" && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
warnings=(-std=c++20 -Wall -Wextra -Wconversion -Werror)
unset STILLMAP_HOSTCUDA

compilers=(g++)
for name in clang++-14 clang++; do
  if type -P "$name" >/dev/null; then
    compilers+=("$name")
    break
  fi
done
other=${compilers[-1]} # clang where there is one

# A copy of the prefix, somewhere else than it was configured for.
moved=$work/moved/elsewhere
mkdir -p "$work/moved"
cp -a "$prefix" "$moved"
hostcuda=$(find "$moved" -path '*/stillmap/hostcuda/libcuda.so.1')
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$moved" -name stillmap.pc)")

fail() {
  echo "$*"
  return 1
}
# CMake breaks its messages into lines.
says() { tr -s ' \n' ' ' <"$work/messages" | grep -qF -- "$1" || fail "$(<"$work/messages")"; }
configure() { cmake -G Ninja -DCMAKE_BUILD_TYPE=Debug "$@"; }

# A loader must not take hostcuda for the real driver.
no_shadow() {
  [[ $hostcuda ]] || fail "the prefix has no hostcuda"
  local found
  found=$(find "$moved" -name 'libcuda.so*' ! -path '*/stillmap/hostcuda/*')
  [[ ! $found ]] || fail "a loader would find $found"
}

no_internal_header() {
  local names found
  names=$(sed -n 's/^STILLMAP_INTERNAL_FOLDERS = //p' "$root/tools/build/modules.bzl" | grep -o '[a-z_]\+' | paste -sd'|')
  found=$(find "$moved/include" -name '*.h' | grep -E "/($names)/" || true)
  [[ ! $found ]] || fail "internal headers in the prefix: $found"
  (($(find "$moved/include/stillmap" -name '*.h' | wc -l) > 20)) || fail "headers are missing from the prefix"
}

# Nothing that a project reads names the folder that Stillmap was built in or installed to.
is_relocatable() {
  local found
  found=$(grep -rlF -e "$root" -e "$prefix" "$moved" --include='*.cmake' --include='*.pc' --include='*.h' || true)
  [[ ! $found ]] || fail "absolute paths in $found"
}

# A header that needs an MPI or CUDA is compiled with what pkg-config says of its library; those for CCCL
# with the one that the tests use, and not at all where there is none.
headers_alone() {
  local flags cccl cuda headers=(find stillmap -name '*.h')
  if cccl=$(source "$root/tools/setup.sh" && find_cccl_headers); then
    cuda=$(source "$root/tools/setup.sh" && find_cuda_headers)
    cccl="-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP \
      -isystem $cccl -isystem $cuda -isystem $root/hostcuda/cudart/fallback"
  else
    echo "no CCCL: the headers of allocators/cccl are not compiled"
    headers+=(! -path '*/allocators/cccl/*')
  fi
  flags=$(pkg-config --cflags stillmap $(cd "$PKG_CONFIG_PATH" && ls | sed -n 's/\.pc$//p' | grep -x stillmap-mpi || true))
  flags+=" $cccl"
  cd "$moved/include"
  # shellcheck disable=SC2086
  "${headers[@]}" | sort | xargs -P "$(nproc)" -I{} sh -c \
    'printf "#include \"%s\"\n#include \"%s\"\n" {} {} | "$@" -x c++ - || { echo "{} does not compile alone"; exit 255; }' \
    sh g++ "${warnings[@]}" -fsyntax-only $flags || return 1
  "${headers[@]}" | sort | sed 's/.*/#include "&"/' >"$work/all.cpp"
  # shellcheck disable=SC2086
  "$other" "${warnings[@]}" -fsyntax-only $flags "$work/all.cpp"
}

# The compiler stops at an ignored result, and before C++20.
refused_programs() {
  local flags compiler
  flags=$(pkg-config --cflags stillmap-vmm)
  for compiler in "${compilers[@]}"; do
    # shellcheck disable=SC2086
    compile() { "$compiler" "${warnings[@]}" $flags -fsyntax-only "$@" 2>"$work/messages"; }
    compile -DDROP=0 "$here/dropped_status.cpp" || fail "$compiler: $(<"$work/messages")"
    for drop in 1 2; do
      ! compile "-DDROP=$drop" "$here/dropped_status.cpp" || fail "$compiler takes a dropped result ($drop)"
      grep -qE 'nodiscard|unused-result' "$work/messages" || fail "$compiler: $(<"$work/messages")"
    done
    ! compile -std=c++17 "$here/core_consumer.cpp" || fail "$compiler takes C++17"
    grep -q 'Stillmap needs C++20' "$work/messages" || fail "$compiler: $(<"$work/messages")"
  done
}

with_find_package() {
  local compiler
  for compiler in "${compilers[@]}"; do
    configure -S "$here/cmake_consumer" -B "$work/cmake-$compiler" -DCMAKE_PREFIX_PATH="$moved" -DCMAKE_CXX_COMPILER="$compiler" &&
      cmake --build "$work/cmake-$compiler" &&
      ctest --test-dir "$work/cmake-$compiler" --output-on-failure || return 1
  done
}

with_components() {
  local compiler
  export STILLMAP_DRIVER=host STILLMAP_HOSTCUDA=$hostcuda
  for compiler in "${compilers[@]}"; do
    configure -S "$here/components_consumer" -B "$work/components-$compiler" -DCONSUMER_COMPONENTS=vmm \
      -DCMAKE_PREFIX_PATH="$moved" -DCMAKE_CXX_COMPILER="$compiler" &&
      cmake --build "$work/components-$compiler" &&
      ctest --test-dir "$work/components-$compiler" --output-on-failure || return 1
  done
  ! configure -S "$here/components_consumer" -B "$work/unknown" -DCONSUMER_COMPONENTS='vmm;nonsense' \
    -DCMAKE_PREFIX_PATH="$moved" 2>"$work/messages" || fail "find_package takes a component that there is not"
  says 'no component nonsense'
  ! configure -S "$here/components_consumer" -B "$work/lacking" -DCONSUMER_COMPONENTS='vmm;image' \
    -DCMAKE_PREFIX_PATH="$moved" 2>"$work/messages" || fail "find_package takes image without OpenSSL"
  says 'image needs OpenSSL'
}

# Several sources in one compilation, as the project around it asks for: each alone is compiled by .ci/run's
# step cmake.
with_fetch_content() {
  configure -S "$here/fetch_consumer" -B "$work/fetch" -DSTILLMAP_SOURCE="$root" -DCMAKE_CXX_COMPILER=g++ \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 &&
    cmake --build "$work/fetch" &&
    ctest --test-dir "$work/fetch" --output-on-failure &&
    cmake --install "$work/fetch" --prefix "$work/fetched" || return 1
  [[ $(find "$work/fetched" -type f) == "$work/fetched/bin/consumer" ]] || fail "Stillmap installed itself with a project that uses it"
}

# The core alone, where there is no other dependency to be had, several sources in one compilation.
core_alone() {
  export STILLMAP_DRIVER=host STILLMAP_HOSTCUDA=$hostcuda
  configure -S "$root" -B "$work/core" -DSTILLMAP_COMPONENTS=vmm -DSTILLMAP_BUILD_HOSTCUDA=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16 \
    -DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON \
    -DCMAKE_CXX_COMPILER="$other" -DCMAKE_INSTALL_PREFIX="$work/core-prefix" &&
    cmake --build "$work/core" &&
    cmake --install "$work/core" &&
    configure -S "$here/components_consumer" -B "$work/core-consumer" -DCONSUMER_COMPONENTS=vmm \
      -DCMAKE_PREFIX_PATH="$work/core-prefix" -DCMAKE_CXX_COMPILER="$other" &&
    cmake --build "$work/core-consumer" &&
    ctest --test-dir "$work/core-consumer" --output-on-failure || return 1
  [[ ! -e $work/core-prefix/include/stillmap/checkpoint ]] || fail "the core installs headers of checkpoint"
}

# A prefix that is given only at installation is not known to static libraries. Nothing is built for that.
prefix_at_installation() {
  configure -S "$root" -B "$work/notice" -DSTILLMAP_COMPONENTS=vmm -DCMAKE_INSTALL_PREFIX="$work/configured" || return 1
  install_notice() { cmake --install "$work/notice" --component stillmap_notice "$@" >"$work/messages" 2>&1; }
  install_notice --prefix "$work/given" || fail "$(<"$work/messages")"
  says "your programs look for hostcuda in $work/configured/"
  says "-DCMAKE_INSTALL_PREFIX=$work/given"
  install_notice || fail "$(<"$work/messages")"
  ! grep -F 'look for hostcuda' "$work/messages" || fail "a notice without a reason: $(<"$work/messages")"
}

# Regression: a wheel looked for hostcuda in the folder in /tmp where pip had put it together.
wheel_without_prefix() {
  configure -S "$root" -B "$work/wheel" -DSTILLMAP_COMPONENTS=vmm -DSKBUILD=2 -DCMAKE_INSTALL_PREFIX="$work/gone" || return 1
  grep -q -e '-DSTILLMAP_SIMULATOR=' "$work/wheel/build.ninja" || fail "the rules are not in build.ninja"
  ! grep -F "$work/gone" "$work/wheel/build.ninja" || fail "a wheel looks for hostcuda in the folder that it was made in"
}

# From the copy of the prefix: flags of its own folder, all libraries named that a static one needs, and
# a hostcuda that is found there.
with_pkgconfig() {
  local compiler package library
  make -C "$here/pkgconfig_consumer" OUT="$work" CXX=g++ || return 1
  STILLMAP_DRIVER=host STILLMAP_HOSTCUDA=$(pkg-config --variable=hostcuda stillmap) "$work/consumer" || return 1
  rm "$work/consumer"
  make -C "$here/pkgconfig_consumer" OUT="$work" CXX="$other" || return 1
  ! pkg-config --cflags --libs stillmap | grep -F -- "$prefix" || fail "the flags name the configured prefix"

  echo 'int main() {}' >"$work/main.cpp"
  for package in "$PKG_CONFIG_PATH"/stillmap-*.pc; do
    package=$(basename "$package" .pc)
    library=-lstillmap_${package#stillmap-}
    [[ $package != stillmap-checkpoint ]] || continue
    # shellcheck disable=SC2046
    g++ -o "$work/main" "$work/main.cpp" $(pkg-config --libs "$package" | sed "s/$library\b/-Wl,--whole-archive $library -Wl,--no-whole-archive/") ||
      fail "$package does not name all that it needs"
  done
  STILLMAP_DRIVER=host STILLMAP_VERBOSE=1 "$moved/bin/stillmap" doctor >"$work/doctor" 2>&1 || true
  grep -qF "driver $moved/" "$work/doctor" || fail "the installed command does not find hostcuda beside it: $(head -5 "$work/doctor")"
}

# Programs in C, which need neither C++ nor what Stillmap itself was built with: by pkg-config, by CMake and by
# Python's ctypes. The header is C11 and C++17.
with_c() {
  local cc library strict=(-Wall -Wextra -pedantic -Werror)
  export STILLMAP_DRIVER=host STILLMAP_HOSTCUDA=$hostcuda
  library=$(find "$moved" -name 'libstillmap_c.so.0')
  [[ $library ]] || fail "the prefix has no libstillmap_c.so.0"
  echo '#include "stillmap/c_api.h"' >"$work/header.c"
  for cc in gcc clang; do
    type -P "$cc" >/dev/null || continue
    # shellcheck disable=SC2046
    "$cc" -std=c11 "${strict[@]}" -fsyntax-only $(pkg-config --cflags stillmap-c) "$work/header.c" &&
      "$cc" -x c++ -std=c++17 "${strict[@]}" -fsyntax-only $(pkg-config --cflags stillmap-c) "$work/header.c" &&
      "$cc" -std=c11 "${strict[@]}" "$root/examples/c_api.c" -o "$work/c_program" $(pkg-config --cflags --libs stillmap-c) &&
      LD_LIBRARY_PATH=$(dirname "$library") "$work/c_program" || return 1
  done
  configure -S "$here/c_consumer" -B "$work/c-consumer" -DCMAKE_PREFIX_PATH="$moved" -DEXAMPLE="$root/examples/c_api.c" &&
    cmake --build "$work/c-consumer" &&
    ctest --test-dir "$work/c-consumer" --output-on-failure &&
    python3 "$root/examples/c_api_ctypes.py" "$library"
}

# A program without Stillmap, by the installed command.
with_hostcuda_command() {
  local run="$moved/bin/hostcuda run"
  $run --profile multi:2 --config memory=1G -- python3 "$root/hostcuda/python/tests/installed_program.py" || return 1
  ! $run --profile nonsense -- true 2>"$work/messages" || fail "hostcuda run takes a machine that there is not"
  says 'there are: h200,'
  ! $run --config memory=lots -- true 2>"$work/messages" || fail "hostcuda run takes invalid settings"
  says "'memory=lots' is not a valid setting"
}

# The Python package, as the wheel has it, and its pytest plug-in. Building a wheel needs PyPI.
with_hostcuda_package() {
  local python=python3
  "$root/hostcuda/python/wheel.sh" --stage-only --libraries "$(dirname "$hostcuda")" || return 1
  cd "$root/out/wheel"
  export PYTHONPATH=source PYTHONDONTWRITEBYTECODE=1
  $python -c 'import stillmap_hostcuda as h; h.load(); h.reset("profile=mig")' || return 1
  $python -c 'import pytest' 2>/dev/null || python=/usr/bin/python3 # where Debian's package is
  $python -m pytest -q -p no:cacheprovider -p stillmap_hostcuda.pytest_plugin --hostcuda=on \
    "$root/hostcuda/python/tests/driver_by_ctypes.py" || return 1
  local tests=$root/hostcuda/python/tests
  PYTHONPATH=$tests/fake_torch:source $python -c 'import sys; from stillmap_hostcuda import launcher; sys.exit(launcher.main())' \
    dryrun --allocator native --find-least --loop-limit 5 --gpu rtx4090 --pictures pictures -- $python "$tests/dryrun_program.py" | tee dryrun.txt
  grep -E '^native +64 MiB +64 MiB +64 MiB +1\.000 +0 +64 MiB .* ok$' dryrun.txt &&
    grep -E ' 3  .*dryrun_program.py:8$' dryrun.txt &&
    grep -E ' 6  .*dryrun_program.py:10, true after 5 times$' dryrun.txt &&
    grep -q 'dryrun_program.py:5 &lt;module&gt;' pictures/memory.svg
}

with_bazel() {
  cd "$here/bazel_consumer" || return 1
  "$root/tools/bazel" build --nobuild //:with_all_libraries &&
    "$root/tools/bazel" test --test_output=errors //:consumer &&
    "$root/tools/bazel" shutdown
}

checks=(no_shadow no_internal_header is_relocatable headers_alone refused_programs with_find_package with_components
  with_fetch_content core_alone prefix_at_installation wheel_without_prefix with_pkgconfig with_c with_hostcuda_command
  with_hostcuda_package with_bazel)
(($#)) && checks=("$@")
failed=0
for check in "${checks[@]}"; do
  began=$SECONDS
  # Not in an `if`, which would switch `set -e` off inside.
  set +e
  (set -e; "$check") >"$work/log" 2>&1
  status=$?
  set -e
  if ((status == 0)); then
    echo "install: $check: ok, $((SECONDS - began)) s"
  else
    sed 's/^/    /' "$work/log"
    echo "install: $check: failed"
    failed=1
  fi
done
exit $failed
