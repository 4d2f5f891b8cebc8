// What a call costs a program, run with the preload and without, beside the allocator's own allocate and free.
//   LD_PRELOAD=bazel-bin/preload/libstillmap_preload.so LD_LIBRARY_PATH=bazel-bin/hostcuda bazel-bin/bench/preload_calls
#include <benchmark/benchmark.h>
#include <cuda.h>

#include "stillmap/allocators/caching_allocator.h"

namespace {

bool ready() {
  static const bool done = [] {
    CUcontext context = nullptr;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
  }();
  return done;
}

void allocate_and_free(benchmark::State &state) {
  if (!ready()) return state.SkipWithError("no driver");
  for (auto _ : state) {
    CUdeviceptr at = 0;
    if (cuMemAlloc(&at, static_cast<std::size_t>(state.range(0))) != CUDA_SUCCESS ||
        cuMemFree(at) != CUDA_SUCCESS) {
      return state.SkipWithError("failed");
    }
    benchmark::DoNotOptimize(at);
  }
}
BENCHMARK(allocate_and_free)->Arg(4096)->Arg(3 << 20);

void allocator(benchmark::State &state) {
  const auto device = stillmap::device::open();
  if (!device) return state.SkipWithError("no driver");
  const auto heap = stillmap::caching_allocator::create(*device);
  for (auto _ : state) {
    const auto block =
        (*heap)->allocate(static_cast<std::size_t>(state.range(0)), stillmap::stream_ref::legacy());
    if (!block || !(*heap)->free(*block)) return state.SkipWithError("failed");
    benchmark::DoNotOptimize(*block);
  }
}
BENCHMARK(allocator)->Name("allocator_allocate_and_free")->Arg(4096)->Arg(3 << 20);

void current_context(benchmark::State &state) {
  if (!ready()) return state.SkipWithError("no driver");
  for (auto _ : state) {
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    benchmark::DoNotOptimize(context);
  }
}
BENCHMARK(current_context);

void query(benchmark::State &state) {
  if (!ready()) return state.SkipWithError("no driver");
  for (auto _ : state) benchmark::DoNotOptimize(cuStreamQuery(nullptr));
}
BENCHMARK(query)->Name("query_of_a_stream");

// One that waits at the door: its argument is refused at once.
void refused(benchmark::State &state) {
  if (!ready()) return state.SkipWithError("no driver");
  for (auto _ : state) benchmark::DoNotOptimize(cuEventRecord(nullptr, nullptr));
}
BENCHMARK(refused)->Name("event_record_without_an_event");

}  // namespace

BENCHMARK_MAIN();
