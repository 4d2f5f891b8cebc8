#!/bin/bash
# Builds and runs the benchmarks.  tools/bench.sh [--smoke] [GOOGLE BENCHMARK OPTIONS]
#   --smoke   each case as briefly as it can, to see that it runs; the numbers mean nothing
# Writes one JSON file per program to out/bench/.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

options=()
if [[ ${1:-} == --smoke ]]; then
  shift
  options+=(--benchmark_min_time=0.001)
  export STILLMAP_BENCH_SMOKE=1
fi
options+=("$@")

ensure_machine
bazel_quietly build //bench/... //hostcuda:libcuda.so.1
export STILLMAP_HOSTCUDA="${STILLMAP_HOSTCUDA:-$STILLMAP_ROOT/bazel-bin/hostcuda/libcuda.so.1}"
mkdir -p "$STILLMAP_ROOT/out/bench"

found=0
for source in "$STILLMAP_ROOT"/bench/*_bench.cpp; do
  [[ -e $source ]] || continue
  found=1
  name=$(basename "$source" .cpp)
  say "$name"
  (cd "$STILLMAP_ROOT" && "bazel-bin/bench/$name" --benchmark_out="out/bench/$name.json" "${options[@]}")
done
((found)) || die "there are no benchmarks in bench/"
