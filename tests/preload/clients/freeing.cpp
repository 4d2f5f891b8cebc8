// The client of preload_freeing_test: what a program may rely on when it frees memory.
#include <unistd.h>

#include <random>

#include "tests/preload/clients/semantics.h"

namespace client {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

int waits_for_work() {
  if (use_device(0) != 0) return 1;
  const CUstream s = new_stream();
  for (const std::size_t bytes : {4 * KiB, 3 * MiB}) {
    const CUdeviceptr block = block_of(bytes);
    hold(s);
    CLIENT_CHECK(cuMemsetD8Async(block, 1, bytes, s));
    {
      late_release later(s);
      CLIENT_CHECK(cuMemFree(block));
      CLIENT_EXPECT(later.done);
      CLIENT_CHECK(cuStreamQuery(s));
    }
    const CUdeviceptr again = block_of(bytes);
    CLIENT_CHECK(cuMemsetD8(again, 2, bytes));
    CLIENT_CHECK(cuCtxSynchronize());
    CLIENT_EXPECT(holds(again, bytes, 2));
    CLIENT_CHECK(cuMemFree(again));
  }
  return 0;
}

// While one thread waits in cuMemFree, another one's cuMemFree waits, too.
int waits_in_two_threads() {
  if (use_device(0) != 0) return 1;
  const CUstream s = new_stream();
  const CUdeviceptr first = block_of(MiB), second = block_of(MiB);
  hold(s);
  CLIENT_CHECK(cuMemsetD8Async(second, 1, MiB, s));
  std::atomic<bool> released{false}, too_early{false};
  std::atomic<int> failures{0};
  const auto free_in_thread = [&](CUdeviceptr block) {
    return std::thread([&, block] {
      failures += use_device(0);
      failures += cuMemFree(block) != CUDA_SUCCESS;
      if (!released) too_early = true;
    });
  };
  const std::uint64_t before = calls("cuCtxSynchronize");
  std::thread one = free_in_thread(first);
  while (calls("cuCtxSynchronize") == before && !too_early) pause(1);
  std::thread other = free_in_thread(second);
  pause(100);
  released = true;
  release(s);
  one.join();
  other.join();
  CLIENT_EXPECT(failures == 0);
  CLIENT_EXPECT(!too_early);
  return 0;
}

// A block of the one device is freed while the other one's context is current.
int waits_for_the_device_of_the_block() {
  int devices = 0;
  CLIENT_CHECK(cuInit(0));
  CLIENT_CHECK(cuDeviceGetCount(&devices));
  if (devices < 2) return 0;
  if (use_device(1) != 0) return 1;
  const CUstream s = new_stream();
  const CUdeviceptr block = block_of(MiB);
  hold(s);
  CLIENT_CHECK(cuMemsetD8Async(block, 1, MiB, s));
  if (use_device(0) != 0) return 1;
  late_release later(s);
  CLIENT_CHECK(cuMemFree(block));
  CLIENT_EXPECT(later.done);
  CUdevice current = -1;
  CLIENT_CHECK(cuCtxGetDevice(&current));
  CLIENT_EXPECT(current == 0);
  return 0;
}

int waits_in_several_contexts() {
  if (use_device(0) != 0) return 1;
  CUcontext primary = nullptr, other = nullptr;
  CLIENT_CHECK(cuCtxGetCurrent(&primary));
  CLIENT_CHECK(create_context(&other));
  for (const CUcontext context : {other, primary, other}) {
    CLIENT_CHECK(cuCtxSetCurrent(context));
    const CUstream s = new_stream();
    const CUdeviceptr block = block_of(MiB);
    hold(s);
    CLIENT_CHECK(cuMemsetD8Async(block, 1, MiB, s));
    late_release later(s);
    CLIENT_CHECK(cuMemFree(block));
    CLIENT_EXPECT(later.done);
  }
  CLIENT_CHECK(cuCtxDestroy(other));
  CLIENT_CHECK(cuCtxSetCurrent(primary));
  CLIENT_CHECK(cuMemFree(block_of(MiB)));
  return 0;
}

int capture_goes_on() {
  if (use_device(0) != 0) return 1;
  const CUstream s = new_stream();
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const CUdeviceptr used = block_of(MiB), freed = block_of(MiB);
    CLIENT_CHECK(cuStreamBeginCapture(s, mode));
    CLIENT_CHECK(cuMemsetD8Async(used, 7, MiB, s));
    CLIENT_CHECK(cuMemFree(freed));
    CLIENT_EXPECT(cuMemFree(freed) == CUDA_ERROR_INVALID_VALUE);
    // Served from what is mapped already.
    const CUdeviceptr more = block_of(4 * KiB);
    CLIENT_EXPECT(more != 0);
    CLIENT_CHECK(cuMemsetD8Async(more, 8, 4 * KiB, s));
    CUgraph graph = nullptr;
    CLIENT_CHECK(cuStreamEndCapture(s, &graph));
    CUgraphExec ready = nullptr;
    CLIENT_CHECK(cuGraphInstantiate(&ready, graph, 0));
    CLIENT_CHECK(cuGraphLaunch(ready, s));
    CLIENT_CHECK(cuStreamSynchronize(s));
    CLIENT_EXPECT(holds(used, MiB, 7) && holds(more, 4 * KiB, 8));
    CLIENT_CHECK(cuGraphExecDestroy(ready));
    CLIENT_CHECK(cuGraphDestroy(graph));
    CLIENT_CHECK(cuMemFree(used));
    CLIENT_CHECK(cuMemFree(more));
  }
  return 0;
}

// Blocks that were freed during a capture are there again when memory is short.
int captured_frees_come_back() {
  if (use_device(0) != 0) return 1;
  const CUstream s = new_stream();
  const CUdeviceptr most = block_of(48 * MiB);  // the test sets a limit of 64 MiB
  CLIENT_CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CLIENT_CHECK(cuMemFree(most));
  CUgraph graph = nullptr;
  CLIENT_CHECK(cuStreamEndCapture(s, &graph));
  const CUdeviceptr next = block_of(48 * MiB);
  CLIENT_EXPECT(next != 0);
  CLIENT_CHECK(cuMemFree(next));
  return 0;
}

int async_order() {
  if (use_device(0) != 0) return 1;
  int pools = 0;
  CLIENT_CHECK(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  if (pools == 0) return 0;
  const CUstream a = new_stream(), b = new_stream();
  for (const std::size_t bytes : {4 * KiB, 3 * MiB}) {
    CUdeviceptr first = 0, second = 0, third = 0;
    CLIENT_CHECK(cuMemAllocAsync(&first, bytes, a));
    hold(a);
    CLIENT_CHECK(cuMemsetD8Async(first, 1, bytes, a));
    CLIENT_CHECK(cuMemFreeAsync(first, a));
    CLIENT_CHECK(cuMemAllocAsync(&second, bytes, b));
    CLIENT_CHECK(cuMemsetD8Async(second, 2, bytes, b));
    CLIENT_CHECK(cuMemAllocAsync(&third, bytes, a));
    CLIENT_CHECK(cuMemsetD8Async(third, 3, bytes, a));
    release(a);
    CLIENT_CHECK(cuStreamSynchronize(a));
    CLIENT_CHECK(cuStreamSynchronize(b));
    CLIENT_EXPECT(holds(second, bytes, 2) && holds(third, bytes, 3));
    // Freed on another stream than it was used on, and by the call without a stream.
    CLIENT_CHECK(cuMemFreeAsync(third, b));
    CLIENT_CHECK(cuMemFree(second));
  }
  CLIENT_CHECK(cuStreamDestroy(a));
  CLIENT_CHECK(cuStreamDestroy(b));
  return 0;
}

int per_thread_streams() {
  if (use_device(0) != 0) return 1;
  const auto allocate =
      hostcuda<CUresult(CUdeviceptr *, std::size_t, CUstream)>("cuMemAllocAsync_ptsz");
  const auto free = hostcuda<CUresult(CUdeviceptr, CUstream)>("cuMemFreeAsync_ptsz");
  const auto set =
      hostcuda<CUresult(CUdeviceptr, unsigned char, std::size_t, CUstream)>("cuMemsetD8Async_ptsz");
  const auto copy =
      hostcuda<CUresult(void *, CUdeviceptr, std::size_t, CUstream)>("cuMemcpyDtoHAsync_v2_ptsz");
  const auto wait = hostcuda<CUresult(CUstream)>("cuStreamSynchronize_ptsz");
  int pools = 0;
  CLIENT_CHECK(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  if (pools == 0) return 0;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned char t = 1; t <= 8; ++t) {
    threads.emplace_back([&, t] {
      if (use_device(0) != 0) ++wrong;
      std::vector<unsigned char> got(64 * KiB);
      for (int i = 0; i < 50; ++i) {
        CUdeviceptr block = 0;
        if (allocate(&block, got.size(), nullptr) != CUDA_SUCCESS) ++wrong;
        if (set(block, t, got.size(), nullptr) != CUDA_SUCCESS) ++wrong;
        if (copy(got.data(), block, got.size(), nullptr) != CUDA_SUCCESS) ++wrong;
        if (free(block, nullptr) != CUDA_SUCCESS || wait(nullptr) != CUDA_SUCCESS) ++wrong;
        for (const unsigned char c : got) wrong += c != t;
      }
    });
  }
  for (std::thread &t : threads) t.join();
  CLIENT_EXPECT(wrong == 0);
  return 0;
}

int many_threads() {
  if (use_device(0) != 0) return 1;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      if (use_device(0) != 0) ++wrong;
      std::mt19937 random(t);
      struct one {
        CUdeviceptr at;
        std::size_t bytes;
        unsigned char value;
      };
      std::vector<one> mine;
      const auto drop = [&](std::size_t i) {
        if (!holds(mine[i].at, mine[i].bytes, mine[i].value)) ++wrong;
        if (cuMemFree(mine[i].at) != CUDA_SUCCESS) ++wrong;
        mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i));
      };
      for (int i = 0; i < 300; ++i) {
        if (mine.size() < 8 && random() % 3 != 0) {
          const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 2 * MiB : 20 * KiB);
          const one made{block_of(bytes), bytes, static_cast<unsigned char>(random())};
          if (made.at == 0 || cuMemsetD8(made.at, made.value, bytes) != CUDA_SUCCESS) {
            ++wrong;
          } else {
            mine.push_back(made);
          }
        } else if (!mine.empty()) {
          drop(random() % mine.size());
        }
      }
      while (!mine.empty()) drop(0);
    });
  }
  for (std::thread &t : threads) t.join();
  CLIENT_EXPECT(wrong == 0);
  return 0;
}

// What each call returns, for a comparison with the same calls without the preload.
int codes() {
  const auto say = [](const char *what, CUresult code) {
    std::printf("%s %d\n", what, static_cast<int>(code));
  };
  CUdeviceptr at = 0;
  say("allocate before cuInit", cuMemAlloc(&at, 1));
  say("free before cuInit", cuMemFree(0x1000));
  say("free of null before cuInit", cuMemFree(0));
  CLIENT_CHECK(cuInit(0));
  say("allocate without a context", cuMemAlloc(&at, 1));
  say("free of null without a context", cuMemFree(0));
  if (use_device(0) != 0) return 1;
  const std::size_t huge = std::size_t{1} << 50;
  say("allocate to null", cuMemAlloc(nullptr, 1));
  say("allocate nothing", cuMemAlloc(&at, 0));
  say("allocate too much", cuMemAlloc(&at, huge));
  say("allocate the most", cuMemAlloc(&at, SIZE_MAX));
  std::size_t pitch = 0;
  say("pitch to null", cuMemAllocPitch(nullptr, &pitch, 10, 10, 4));
  say("pitch without a pitch", cuMemAllocPitch(&at, nullptr, 10, 10, 4));
  say("pitch of no width", cuMemAllocPitch(&at, &pitch, 0, 10, 4));
  say("pitch of no height", cuMemAllocPitch(&at, &pitch, 10, 0, 4));
  say("pitch of three bytes", cuMemAllocPitch(&at, &pitch, 10, 10, 3));
  say("pitch of the most", cuMemAllocPitch(&at, &pitch, SIZE_MAX, SIZE_MAX, 4));
  say("pitch too wide", cuMemAllocPitch(&at, &pitch, SIZE_MAX - 7, 1, 4));
  say("free of null", cuMemFree(0));
  say("free of no address", cuMemFree(0x123456));
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{3} << 20}) {
    const CUdeviceptr kept = block_of(bytes), block = block_of(bytes);
    say("free of an inner address", cuMemFree(block + 8));
    say("free", cuMemFree(block));
    say("free again", cuMemFree(block));
    CUdeviceptr base = 0;
    std::size_t size = 0;
    say("range of a freed block", cuMemGetAddressRange(&base, &size, block));
    std::uint64_t value = 0;
    say("attribute of a freed block",
        cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block));
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    std::uint64_t start = 1, range = 1;
    unsigned type = 0;
    void *to[] = {&start, &range, &type};
    say("attributes of a freed block", cuPointerGetAttributes(3, wanted, to, block));
    std::printf("they are %d %d %u\n", start != 0, range != 0, type);
    say("attributes of a block", cuPointerGetAttributes(3, wanted, to, kept + 5));
    std::printf("they are %d %d %u\n", start == kept, range == bytes, type);
    say("attributes of no pointer", cuPointerGetAttributes(3, wanted, to, 0x123456));
    std::printf("they are %d %d %u\n", start != 0, range != 0, type);
    say("range of an inner address", cuMemGetAddressRange(&base, &size, kept + bytes - 1));
    std::printf("it is %d %d\n", base == kept, size == bytes);
    say("range to null", cuMemGetAddressRange(nullptr, nullptr, kept));
    say("base to null", cuMemGetAddressRange(nullptr, &size, kept));
    say("range behind a block", cuMemGetAddressRange(&base, &size, kept + bytes));
    say("range of no address", cuMemGetAddressRange(&base, &size, 0x123456));
    say("free", cuMemFree(kept));
  }
  const CUdeviceptr elsewhere = block_of(100);
  std::thread([&] { say("free in a thread without a context", cuMemFree(elsewhere)); }).join();
  say("figures to null", cuMemGetInfo(nullptr, nullptr));
  std::size_t figure = 0;
  say("free bytes to null", cuMemGetInfo(nullptr, &figure));
  say("total bytes to null", cuMemGetInfo(&figure, nullptr));
  say("total memory to null", cuDeviceTotalMem(nullptr, 0));
  say("total memory of no device", cuDeviceTotalMem(&figure, 99));
  int pools = 0;
  CLIENT_CHECK(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  if (pools != 0) {
    const CUstream s = new_stream();
    say("async to null", cuMemAllocAsync(nullptr, 1, s));
    say("async nothing", cuMemAllocAsync(&at, 0, s));
    say("async too much", cuMemAllocAsync(&at, huge, s));
    say("async free of null", cuMemFreeAsync(0, s));
    say("async free of no address", cuMemFreeAsync(0x123456, s));
    say("async", cuMemAllocAsync(&at, 100, s));
    say("async free of an inner address", cuMemFreeAsync(at + 8, s));
    say("async free", cuMemFreeAsync(at, s));
    say("async free again", cuMemFreeAsync(at, s));
    say("free after async free", cuMemFree(at));
    const CUdeviceptr block = block_of(100);
    say("async free of a block that is not", cuMemFreeAsync(block, s));
    say("async in the legacy stream", cuMemAllocAsync(&at, 100, CU_STREAM_LEGACY));
    say("free in the legacy stream", cuMemFreeAsync(at, CU_STREAM_LEGACY));
    say("async in the thread's stream", cuMemAllocAsync(&at, 100, CU_STREAM_PER_THREAD));
    say("free in the thread's stream", cuMemFreeAsync(at, CU_STREAM_PER_THREAD));
    say("async in no stream", cuMemAllocAsync(&at, 100, nullptr));
    say("free in no stream", cuMemFreeAsync(at, nullptr));
  }
  return 0;
}

struct late_owner {
  CUdeviceptr block = 0;
  ~late_owner() {
    // The driver may have gone: any code but a crash.
    if (block == 0) return;
    cuMemFree(block);
    CUdeviceptr at = 0;
    cuMemAlloc(&at, 100);
    std::size_t free_bytes = 0, total = 0;
    cuMemGetInfo(&free_bytes, &total);
  }
};
late_owner at_the_end;

int exit_with_memory() {
  if (use_device(0) != 0) return 1;
  at_the_end.block = block_of(MiB);
  block_of(100);
  // One thread never ends.
  std::thread([] {
    use_device(0);
    for (;;) {
      if (const CUdeviceptr at = block_of(5000)) cuMemFree(at);
    }
  }).detach();
  std::atexit([] { block_of(10); });
  pause(20);
  return 0;
}

constexpr named_case cases[] = {
    {"waits_for_work", waits_for_work},
    {"waits_in_two_threads", waits_in_two_threads},
    {"waits_for_the_device_of_the_block", waits_for_the_device_of_the_block},
    {"waits_in_several_contexts", waits_in_several_contexts},
    {"capture_goes_on", capture_goes_on},
    {"captured_frees_come_back", captured_frees_come_back},
    {"async_order", async_order},
    {"per_thread_streams", per_thread_streams},
    {"many_threads", many_threads},
    {"codes", codes},
    {"exit_with_memory", exit_with_memory},
};

}  // namespace
}  // namespace client

int main(int, char **words) {
  for (const client::named_case &c : client::cases) {
    if (std::strcmp(c.name, words[1]) == 0) return c.run();
  }
  std::fprintf(stderr, "no case %s\n", words[1]);
  return 2;
}
