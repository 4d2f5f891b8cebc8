#!/bin/bash
# Compiles and runs what is written for CCCL (allocators/cccl) with each version of it that differs: the tests
# with g++, their syntax with clang++, and with nvcc, where there is one, a program with kernels. All run on
# hostcuda. ./test does the first of these with the CCCL of the machine.
#   tools/check/cccl_dialects.sh [FOLDER...]   FOLDER has cuda/memory_resource; else the machine's, and some of PyPI
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../setup.sh"
cd "$STILLMAP_ROOT"

# cuda::mr without allocate_sync (2.8, 3.0.1); with it, behind a macro (3.1.4); without the macro (3.2.0, 3.5.0).
packages=(nvidia-cuda-cccl-cu12==12.9.27 nvidia-cuda-cccl==13.0.85 nvidia-cuda-cccl==13.1.115
  nvidia-cuda-cccl==13.2.86 nvidia-cuda-cccl==13.3.5.0.6)

folders=("$@")
if ((${#folders[@]} == 0)); then
  folders=("$(find_cccl_headers)") || die "no CCCL on this machine"
  for package in "${packages[@]}"; do
    target=.cache/cccl_dialects/$package
    [[ -d $target ]] || python3 -m pip install -q --disable-pip-version-check --no-deps --target "$target" "$package"
    folders+=("$(cd "$(dirname "$(find "$target" -path '*/cuda/memory_resource')")/.." && pwd)")
  done
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$STILLMAP_ROOT" "$work/stillmap"
cuda=$(find_cuda_headers) || die "no CUDA headers"
nvcc=$(PATH=$PATH:$cuda/../bin type -P nvcc) || say "no nvcc: kernels are not compiled"
clang=$(type -P clang++-14 || type -P clang++) || say "no clang++: g++ alone"
failed=0

# Names what is done, does it, and shows what it said where it failed.
step() {
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "cccl: $name: ok"
  else
    echo "cccl: $name: failed"
    tail -40 "$work/log" | sed 's/^/    /'
    failed=1
  fi
}
with_bazel() { STILLMAP_CCCL_INCLUDE=$1 bazel_quietly test --config=strict //tests:cccl_h200 //tests:cccl_vgpu_no_vmm //allocators/cccl/...; }
with_clang() {
  local source
  for source in tests/allocators/cccl/*.cpp; do
    "$clang" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I"$work" -I. -Ihostcuda/include \
      -isystem "$1" -isystem "$cuda" -isystem hostcuda/cudart/fallback -DSTILLMAP_HAVE_CCCL \
      -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP "$source" || return 1
  done
}
with_nvcc() {
  local macro=-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE driver runtime
  driver=$(readlink -f bazel-bin/hostcuda/libcuda.so.1) runtime=$(printf "%s\n" bazel-bin/hostcuda/cudart/libcudart.so.1? | tail -n 1)
  ((${2:-0} < 3002000)) || macro=-DNO_MACRO
  ln -sf "$driver" "$work/libcuda.so.1" && ln -sf "$(readlink -f "$runtime")" "$work/$(basename "$runtime")" &&
    "$nvcc" -std=c++20 -Werror all-warnings -cudart none -arch=sm_90 $macro -I"$1" -I"$work" \
      -c tests/allocators/cccl/kernels_check.cu -o "$work/kernels_check.o" &&
    g++ -o "$work/kernels_check" "$work/kernels_check.o" bazel-bin/allocators/liballocators.a bazel-bin/vmm/libvmm.a \
      "$work/$(basename "$runtime")" -ldl -pthread &&
    LD_LIBRARY_PATH=$work STILLMAP_DRIVER=host STILLMAP_HOSTCUDA=$work/libcuda.so.1 HOSTCUDA=profile=h200,kernels=skip \
      "$work/kernels_check"
}

bazel_quietly build --config=strict //vmm //allocators //hostcuda:libcuda.so.1 //hostcuda/cudart/...
for folder in "${folders[@]}"; do
  version=$(sed -n 's/^#define CCCL_VERSION \([0-9]*\).*/\1/p' "$folder/cuda/std/__cccl/version.h")
  step "$version, g++ and hostcuda" with_bazel "$folder"
  [[ ! $clang ]] || step "$version, clang++" with_clang "$folder"
  [[ ! $nvcc ]] || step "$version, nvcc and hostcuda" with_nvcc "$folder" "$version"
done
exit $failed
