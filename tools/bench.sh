#!/bin/bash
# Builds and runs the benchmarks.  tools/bench.sh [--smoke] [GOOGLE BENCHMARK OPTIONS]
#   --smoke   each case as briefly as it can, to see that it runs; the numbers mean nothing
# Writes one JSON file per program to out/bench/, and prints them as one table at the end.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

options=()
if [[ ${1:-} == --smoke ]]; then
  shift
  options+=(--benchmark_min_time=0.001)
  export STILLMAP_BENCH_SMOKE=1
fi
options+=("$@")

ensure_machine
# One of the peers. Loaded when it is there: without it its column is empty.
if command -v dpkg-query >/dev/null; then ensure_packages libmimalloc2.0; fi
bazel_quietly build //bench/... //hostcuda:libcuda.so.1
export STILLMAP_HOSTCUDA="${STILLMAP_HOSTCUDA:-$STILLMAP_ROOT/bazel-bin/hostcuda/libcuda.so.1}"
STILLMAP_COMMIT=$(git -C "$STILLMAP_ROOT" describe --always --dirty 2>/dev/null || echo unknown)
export STILLMAP_COMMIT
mkdir -p "$STILLMAP_ROOT/out/bench"

reports=()
for source in "$STILLMAP_ROOT"/bench/*_bench.cpp; do
  [[ -e $source ]] || continue
  name=$(basename "$source" .cpp)
  say "$name"
  reports+=("$STILLMAP_ROOT/out/bench/$name.json")
  (cd "$STILLMAP_ROOT" && "bazel-bin/bench/$name" --benchmark_out="out/bench/$name.json" "${options[@]}")
done
# A key-value cache, under the requests that the program generates.
say kv_bench
reports+=("$STILLMAP_ROOT/out/bench/kv_bench.json")
(cd "$STILLMAP_ROOT" && bazel-bin/bench/kv_bench --json=out/bench/kv_bench.json \
  ${STILLMAP_BENCH_SMOKE:+--smoke})
# A program that nobody changed, without the preload and with it.
for library in "" libstillmap_preload.so; do
  name=preload_calls${library:+_preloaded}
  say "$name"
  reports+=("$STILLMAP_ROOT/out/bench/$name.json")
  (cd "$STILLMAP_ROOT" && LD_PRELOAD="${library:+$STILLMAP_ROOT/bazel-bin/preload/$library}" bazel-bin/bench/preload_calls \
    --benchmark_out="out/bench/$name.json" ${library:+"--benchmark_context=preload=$library"} "${options[@]}")
done
((${#reports[@]})) || die "there are no benchmarks in bench/"
"$STILLMAP_ROOT/tools/bench_table.py" "${reports[@]}"
