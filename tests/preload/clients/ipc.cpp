// The client of preload_ipc_test: legacy IPC between processes, as a program uses it. `exporter_` and `importer_` are the
// two sides of a case.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <algorithm>
#include <random>

#include "tests/preload/clients/process_pair.h"

namespace client {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;
constexpr unsigned lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

int entries(const char *folder) {
  int n = 0;
  if (DIR *const d = ::opendir(folder)) {
    while (::readdir(d) != nullptr) ++n;
    ::closedir(d);
  }
  return n;
}
int descriptors() {
  return entries("/proc/self/fd");
}

// Waits until it is so: what another process, or a thread of the library, does on its own.
template <class Condition>
bool comes_true(const Condition &condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) pause(1);
  return condition();
}

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> out(bytes);
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < bytes; i += sizeof state) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t value = state ^ state >> 32;
    std::memcpy(out.data() + i, &value, std::min(sizeof value, bytes - i));
  }
  return out;
}
bool has_pattern(CUdeviceptr at, std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> got(bytes);
  return cuMemcpyDtoH(got.data(), at, bytes) == CUDA_SUCCESS &&
         std::memcmp(got.data(), pattern(bytes, seed).data(), bytes) == 0;
}
CUdeviceptr block_with(std::size_t bytes, unsigned seed) {
  const CUdeviceptr at = block_of(bytes);
  if (cuMemcpyHtoD(at, pattern(bytes, seed).data(), bytes) != CUDA_SUCCESS)
    std::fprintf(stderr, "cuMemcpyHtoD failed\n");
  return at;
}
CUipcMemHandle handle_of(CUdeviceptr at) {
  CUipcMemHandle h{};
  if (const CUresult r = cuIpcGetMemHandle(&h, at))
    std::fprintf(stderr, "cuIpcGetMemHandle: %d\n", static_cast<int>(r));
  return h;
}

std::size_t allocated() {
  std::size_t free_bytes = 0, total = 0;
  cuMemGetInfo(&free_bytes, &total);
  return total - free_bytes;
}

// The device is open, and what the driver keeps for it is there: descriptors can be counted.
int use_device_and_memory() {
  if (use_device(0) != 0) return 1;
  CLIENT_CHECK(cuMemFree(block_of(1)));
  return 0;
}

// ---- contents ----

// Of one page and of many, at offsets in pages that other blocks share.
constexpr std::size_t sizes[] = {1, 700, 64 * KiB, 2 * MiB, 5 * MiB + 12, 66 * MiB};

int exporter_contents(conversation &with) {
  if (use_device(0) != 0) return 1;
  std::vector<CUdeviceptr> blocks;
  unsigned seed = 0;
  for (const std::size_t bytes : sizes) {
    block_of(300);  // another one's, beside it
    blocks.push_back(block_with(bytes, ++seed));
    with.say(handle_of(blocks.back()));
  }
  with.meet(1);
  with.meet(2);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CLIENT_EXPECT(has_pattern(blocks[i], sizes[i], static_cast<unsigned>(100 + i)));
    CLIENT_CHECK(cuMemFree(blocks[i]));
  }
  return 0;
}
int importer_contents(conversation &with) {
  if (use_device_and_memory() != 0) return 1;
  std::vector<CUipcMemHandle> handles;
  for (std::size_t i = 0; i < std::size(sizes); ++i) handles.push_back(with.hear<CUipcMemHandle>());
  with.meet(1);
  const int before = descriptors();
  std::vector<CUdeviceptr> blocks;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    CUdeviceptr at = 0;
    CLIENT_CHECK(cuIpcOpenMemHandle(&at, handles[i], lazy));
    CLIENT_EXPECT(has_pattern(at, sizes[i], static_cast<unsigned>(i + 1)));
    CLIENT_CHECK(
        cuMemcpyHtoD(at, pattern(sizes[i], static_cast<unsigned>(100 + i)).data(), sizes[i]));
    blocks.push_back(at);
  }
  for (const CUdeviceptr at : blocks) CLIENT_CHECK(cuIpcCloseMemHandle(at));
  for (const CUdeviceptr at : blocks)
    CLIENT_EXPECT(cuIpcCloseMemHandle(at) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  with.meet(2);
  return 0;
}
int contents() {
  return run_pair(exporter_contents, importer_contents);
}

// ---- what a program asks about it ----

int check_queries(CUdeviceptr begin, std::size_t bytes, bool own) {
  for (const CUdeviceptr at : {begin, begin + bytes / 2, begin + bytes - 1}) {
    CUdeviceptr base = 0, start = 0;
    std::size_t size = 0, range = 0;
    CLIENT_CHECK(cuMemGetAddressRange(&base, &size, at));
    CLIENT_EXPECT(base == begin && size == bytes);
    char capable = 2;
    std::uint64_t types = 99;
    int ordinal = -1;
    unsigned type = 0;
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    };
    void *values[] = {&start, &range, &capable, &types, &ordinal, &type};
    for (const bool one_by_one : {true, false}) {
      start = 0, range = 0, capable = 2, types = 99, ordinal = -1, type = 0;
      if (one_by_one) {
        for (std::size_t i = 0; i < std::size(names); ++i)
          CLIENT_CHECK(cuPointerGetAttribute(values[i], names[i], at));
      } else {
        CLIENT_CHECK(cuPointerGetAttributes(std::size(names), names, values, at));
      }
      CLIENT_EXPECT(start == begin && range == bytes);
      CLIENT_EXPECT(capable == (own ? 1 : 0) && types == 0);
      CLIENT_EXPECT(ordinal == 0 && type == CU_MEMORYTYPE_DEVICE);
    }
  }
  CUmemGenericAllocationHandle page = 0;
  CLIENT_EXPECT(cuMemRetainAllocationHandle(&page, reinterpret_cast<void *>(begin)) ==
                CUDA_ERROR_INVALID_VALUE);
  return 0;
}

int exporter_queries(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_of(3 * MiB + 12);
  CLIENT_CHECK(check_queries(block, 3 * MiB + 12, true));
  with.say(handle_of(block));
  with.meet(1);
  return 0;
}
int importer_queries(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  CUdeviceptr block = 0, base = 0;
  std::size_t bytes = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&block, handle, lazy));
  CLIENT_CHECK(check_queries(block, 3 * MiB + 12, false));
  // What else is on the last page is mapped, and no memory of the program's.
  CLIENT_EXPECT(cuMemGetAddressRange(&base, &bytes, block + 3 * MiB + 12) == CUDA_ERROR_NOT_FOUND);
  // It is the exporter's: nothing here frees it or passes it on.
  CUipcMemHandle own{};
  CLIENT_EXPECT(cuIpcGetMemHandle(&own, block) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuMemFree(block) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuIpcCloseMemHandle(block + 512) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_CHECK(cuIpcCloseMemHandle(block));
  CLIENT_EXPECT(cuMemGetAddressRange(&base, &bytes, block) != CUDA_SUCCESS);
  with.meet(1);
  return 0;
}
int queries() {
  return run_pair(exporter_queries, importer_queries);
}

// ---- opening twice ----

int exporter_twice(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_with(100, 1), other = block_of(100);
  const CUipcMemHandle first = handle_of(block), again = handle_of(block);
  CLIENT_EXPECT(std::memcmp(&first, &again, sizeof first) == 0);
  const CUipcMemHandle different = handle_of(other);
  CLIENT_EXPECT(std::memcmp(&first, &different, sizeof first) != 0);
  with.say(first);
  with.meet(1);
  // What was freed has no handle, and the next block at its address another one.
  CLIENT_CHECK(cuMemFree(block));
  CUipcMemHandle none{};
  CLIENT_EXPECT(cuIpcGetMemHandle(&none, block) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr next = block_of(100);
  CLIENT_EXPECT(next == block);
  const CUipcMemHandle later = handle_of(next);
  CLIENT_EXPECT(std::memcmp(&first, &later, sizeof first) != 0);
  with.meet(2);
  with.meet(3);
  return 0;
}
int importer_twice(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  CUdeviceptr first = 0, second = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&first, handle, lazy));
  CLIENT_CHECK(cuIpcOpenMemHandle(&second, handle, lazy));
  CLIENT_EXPECT(first == second && first != 0);
  CLIENT_CHECK(cuIpcCloseMemHandle(first));
  CLIENT_EXPECT(has_pattern(first, 100, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(first));
  CLIENT_EXPECT(cuIpcCloseMemHandle(first) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_CHECK(cuIpcOpenMemHandle(&first, handle, lazy));
  CLIENT_CHECK(cuIpcCloseMemHandle(first));
  pause(100);  // the exporter has seen the end
  with.meet(1);
  with.meet(2);
  CLIENT_EXPECT(cuIpcOpenMemHandle(&first, handle, lazy) == CUDA_ERROR_INVALID_HANDLE);
  with.meet(3);
  return 0;
}
int twice() {
  return run_pair(exporter_twice, importer_twice);
}

// ---- what is refused ----

int exporter_refused(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_of(3 * MiB);
  CUipcMemHandle handle{};
  CLIENT_EXPECT(cuIpcGetMemHandle(nullptr, block) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuIpcGetMemHandle(&handle, block + 512) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuIpcGetMemHandle(&handle, 12345) == CUDA_ERROR_INVALID_VALUE);
  handle = handle_of(block);
  CUdeviceptr at = 0;
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_INVALID_CONTEXT);
  CUcontext context = nullptr;
  CLIENT_CHECK(cuCtxGetCurrent(&context));
  CLIENT_CHECK(cuCtxSetCurrent(nullptr));
  CLIENT_EXPECT(cuIpcGetMemHandle(&handle, block) == CUDA_ERROR_INVALID_CONTEXT);
  CLIENT_CHECK(cuCtxSetCurrent(context));
  with.say(handle);
  with.meet(1);
  // Forged ones have opened nothing.
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}
int importer_refused(conversation &with) {
  const auto handle = with.hear<CUipcMemHandle>();
  CUdeviceptr at = 0;
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_NOT_INITIALIZED);
  if (use_device_and_memory() != 0) return 1;
  const int before = descriptors();
  CUcontext context = nullptr;
  CLIENT_CHECK(cuCtxGetCurrent(&context));
  CLIENT_CHECK(cuCtxSetCurrent(nullptr));
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_INVALID_CONTEXT);
  CLIENT_CHECK(cuCtxSetCurrent(context));
  CLIENT_EXPECT(cuIpcOpenMemHandle(nullptr, handle, lazy) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, 3) == CUDA_ERROR_INVALID_VALUE);
  // Any other byte is another handle.
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    CUipcMemHandle forged = handle;
    forged.reserved[i] = static_cast<char>(forged.reserved[i] ^ 4);
    CLIENT_EXPECT(cuIpcOpenMemHandle(&at, forged, lazy) == CUDA_ERROR_INVALID_HANDLE);
  }
  for (std::size_t kept = 0; kept < sizeof handle; kept += 4) {
    CUipcMemHandle cut{};
    std::memcpy(&cut, &handle, kept);
    CLIENT_EXPECT(cuIpcOpenMemHandle(&at, cut, lazy) == CUDA_ERROR_INVALID_HANDLE);
  }
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  with.meet(1);
  return 0;
}
int refused() {
  return run_pair(exporter_refused, importer_refused);
}

// ---- freeing and dying ----

int exporter_frees_first(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_of(100);
  with.say(handle_of(block));
  CLIENT_CHECK(cuMemFree(block));
  with.meet(1);
  with.meet(2);
  return 0;
}
int importer_frees_first(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  with.meet(1);
  CUdeviceptr at = 0;
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_INVALID_HANDLE);
  with.meet(2);
  return 0;
}
int freed_before() {
  return run_pair(exporter_frees_first, importer_frees_first);
}

// What is freed while it is open stays the importer's until that closes it.
int exporter_frees_meanwhile(conversation &with) {
  if (use_device(0) != 0) return 1;
  const std::size_t empty = allocated();
  const CUdeviceptr sync = block_with(8 * MiB, 1), async = block_with(600, 2);
  with.say(handle_of(sync));
  with.say(handle_of(async));
  with.meet(1);
  const CUstream s = new_stream();
  CLIENT_CHECK(cuMemFree(sync));
  CLIENT_CHECK(cuMemFreeAsync(async, s));
  CLIENT_EXPECT(cuMemFree(sync) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(cuMemFreeAsync(async, s) == CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle none{};
  CLIENT_EXPECT(cuIpcGetMemHandle(&none, sync) == CUDA_ERROR_INVALID_VALUE);
  CLIENT_EXPECT(allocated() - empty >= 8 * MiB);
  std::vector<CUdeviceptr> others;
  for (int i = 0; i < 40; ++i) {
    for (const std::size_t bytes : {std::size_t{600}, MiB}) {
      others.push_back(block_of(bytes));
      CLIENT_CHECK(cuMemsetD8(others.back(), 0xee, bytes));
    }
  }
  CLIENT_CHECK(cuCtxSynchronize());
  for (const CUdeviceptr at : others) CLIENT_CHECK(cuMemFree(at));
  with.meet(2);
  with.meet(3);
  CLIENT_EXPECT(comes_true([&] { return allocated() <= empty; }));
  return 0;
}
template <bool closes>
int importer_frees_meanwhile(conversation &with) {
  if (use_device(0) != 0) return 1;
  CUdeviceptr sync = 0, async = 0;
  const auto first = with.hear<CUipcMemHandle>(), second = with.hear<CUipcMemHandle>();
  CLIENT_CHECK(cuIpcOpenMemHandle(&sync, first, lazy));
  CLIENT_CHECK(cuIpcOpenMemHandle(&async, second, lazy));
  with.meet(1);
  with.meet(2);
  CLIENT_EXPECT(has_pattern(sync, 8 * MiB, 1) && has_pattern(async, 600, 2));
  // Here it is still open, for others it is gone.
  CUdeviceptr again = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&again, first, lazy));
  CLIENT_EXPECT(again == sync);
  if (!closes) return 0;
  CLIENT_CHECK(cuIpcCloseMemHandle(sync));
  CLIENT_CHECK(cuIpcCloseMemHandle(sync));
  CLIENT_CHECK(cuIpcCloseMemHandle(async));
  with.meet(3);
  return 0;
}
int freed_meanwhile() {
  return run_pair(exporter_frees_meanwhile, importer_frees_meanwhile<true>);
}

// An importer that dies has closed all.
int importer_dies(conversation &with) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (importer_frees_meanwhile<false>(with) != 0) std::_Exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  CLIENT_EXPECT(exit_status(child) == 128 + SIGKILL);
  with.meet(3);
  return 0;
}
int importer_death() {
  return run_pair(exporter_frees_meanwhile, importer_dies);
}

int exporter_dies(conversation &with) {
  if (use_device(0) != 0) return 1;
  with.say(handle_of(block_with(5 * MiB, 1)));
  with.say(handle_of(block_with(100, 2)));
  with.meet(1);
  ::kill(::getpid(), SIGKILL);
  return 1;
}
int importer_outlives(conversation &with) {
  if (use_device(0) != 0) return 1;
  CUdeviceptr open = 0, late = 0;
  const auto first = with.hear<CUipcMemHandle>(), second = with.hear<CUipcMemHandle>();
  CLIENT_CHECK(cuIpcOpenMemHandle(&open, first, lazy));
  with.meet(1);
  CLIENT_EXPECT(comes_true(
      [&] { return cuIpcOpenMemHandle(&late, second, lazy) == CUDA_ERROR_INVALID_HANDLE; }));
  CLIENT_EXPECT(has_pattern(open, 5 * MiB, 1));
  CLIENT_CHECK(cuMemsetD8(open, 3, 5 * MiB));
  CLIENT_EXPECT(holds(open, 5 * MiB, 3));
  CLIENT_CHECK(cuIpcOpenMemHandle(&late, first, lazy));
  CLIENT_CHECK(cuIpcCloseMemHandle(open));
  CLIENT_CHECK(cuIpcCloseMemHandle(open));
  CLIENT_EXPECT(cuIpcOpenMemHandle(&late, first, lazy) == CUDA_ERROR_INVALID_HANDLE);
  return 0;
}
int exporter_death() {
  return run_pair(exporter_dies, importer_outlives, 128 + SIGKILL);
}

// It ends in the middle of what it serves: neither side crashes or waits.
int exporter_exits(conversation &with) {
  if (use_device(0) != 0) return 1;
  with.say(handle_of(block_with(70 * MiB, 1)));
  with.say(handle_of(block_of(100)));
  with.hear<int>();
  std::exit(0);
}
int importer_of_exiting(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUipcMemHandle handles[] = {with.hear<CUipcMemHandle>(), with.hear<CUipcMemHandle>()};
  std::vector<std::thread> all;
  std::atomic<int> failures{0};
  std::atomic<bool> told{false};
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      failures += use_device(0);
      CUresult r = CUDA_SUCCESS;
      for (int i = 0; r == CUDA_SUCCESS; ++i) {
        CUdeviceptr at = 0;
        r = cuIpcOpenMemHandle(&at, handles[t % 2], lazy);
        if (r == CUDA_SUCCESS) failures += cuIpcCloseMemHandle(at) != CUDA_SUCCESS;
        if (i == 3 && !told.exchange(true)) with.say(1);
      }
      failures += r != CUDA_ERROR_INVALID_HANDLE;
    });
  }
  for (std::thread &t : all) t.join();
  CLIENT_EXPECT(failures == 0);
  return 0;
}
int exporter_exit() {
  return run_pair(exporter_exits, importer_of_exiting);
}

// One that does not answer costs the importer some seconds.
int exporter_stops(conversation &with) {
  if (use_device(0) != 0) return 1;
  with.say(::getpid());
  with.say(handle_of(block_with(MiB, 1)));
  ::raise(SIGSTOP);
  with.meet(1);
  return 0;
}
int importer_of_stopped(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto process = with.hear<pid_t>();
  const auto handle = with.hear<CUipcMemHandle>();
  siginfo_t stopped{};
  CLIENT_CHECK(::waitid(P_PID, static_cast<id_t>(process), &stopped, WSTOPPED | WNOWAIT));
  CUdeviceptr at = 0;
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_MAP_FAILED);
  CLIENT_CHECK(::kill(process, SIGCONT));
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_EXPECT(has_pattern(at, MiB, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  with.meet(1);
  return 0;
}
int stopped_exporter() {
  return run_pair(exporter_stops, importer_of_stopped);
}

// A forked child of the exporter serves nobody, and does not keep the socket.
int exporter_forks(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_with(100, 1);
  const CUipcMemHandle handle = handle_of(block);
  int parent_gone[2];
  CLIENT_CHECK(::pipe(parent_gone));
  const pid_t child = ::fork();
  if (child == 0) {
    CUipcMemHandle other{};
    CUdeviceptr at = 0;
    const int failed = (cuIpcGetMemHandle(&other, block) != CUDA_SUCCESS) +
                       (cuIpcOpenMemHandle(&at, handle, lazy) != CUDA_SUCCESS) +
                       (cuIpcCloseMemHandle(block) != CUDA_SUCCESS);
    with.say(failed);
    with.say(handle);
    with.meet(1);
    ::kill(::getppid(), SIGKILL);
    with.meet(2);
    std::_Exit(0);
  }
  exit_status(child);
  return 1;
}
int importer_of_forked(conversation &with) {
  if (use_device(0) != 0) return 1;
  CLIENT_EXPECT(with.hear<int>() == 3);
  const auto handle = with.hear<CUipcMemHandle>();
  CUdeviceptr at = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_EXPECT(has_pattern(at, 100, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  with.meet(1);
  CLIENT_EXPECT(comes_true(
      [&] { return cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_INVALID_HANDLE; }));
  with.meet(2);
  return 0;
}
int forked_exporter() {
  return run_pair(exporter_forks, importer_of_forked, 128 + SIGKILL);
}

// ---- threads ----

constexpr int thread_count = 6, blocks_of_threads = 5;

int exporter_threads(conversation &with) {
  if (use_device(0) != 0) return 1;
  std::vector<CUipcMemHandle> handles(blocks_of_threads);
  std::vector<std::thread> all;
  std::atomic<int> failures{0};
  for (int i = 0; i < blocks_of_threads; ++i) {
    all.emplace_back([&, i] {
      failures += use_device(0);
      handles[static_cast<std::size_t>(i)] = handle_of(block_with(MiB, static_cast<unsigned>(i)));
    });
  }
  for (std::thread &t : all) t.join();
  CLIENT_EXPECT(failures == 0);
  for (const CUipcMemHandle &h : handles) with.say(h);
  // Memory comes and goes meanwhile.
  for (int i = 0; i < 300; ++i) {
    const CUdeviceptr block = block_of(static_cast<std::size_t>(i % 9 + 1) * 600 * KiB);
    handle_of(block);
    CLIENT_CHECK(cuMemFree(block));
  }
  with.meet(1);
  return 0;
}
int importer_threads(conversation &with) {
  if (use_device_and_memory() != 0) return 1;
  std::vector<CUipcMemHandle> handles;
  for (int i = 0; i < blocks_of_threads; ++i) handles.push_back(with.hear<CUipcMemHandle>());
  const int before = descriptors();
  std::vector<std::thread> all;
  std::atomic<int> failures{0};
  for (int t = 0; t < thread_count; ++t) {
    all.emplace_back([&, t] {
      failures += use_device(0);
      for (int i = 0; i < 60; ++i) {
        const auto which = static_cast<std::size_t>((i + t) % blocks_of_threads);
        CUdeviceptr at = 0;
        failures += cuIpcOpenMemHandle(&at, handles[which], lazy) != CUDA_SUCCESS;
        std::vector<unsigned char> some(100);
        failures += cuMemcpyDtoH(some.data(), at, some.size()) != CUDA_SUCCESS;
        failures += some != pattern(100, static_cast<unsigned>(which));
        failures += cuIpcCloseMemHandle(at) != CUDA_SUCCESS;
      }
    });
  }
  for (std::thread &t : all) t.join();
  CLIENT_EXPECT(failures == 0);
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  with.meet(1);
  return 0;
}
int threads() {
  return run_pair(exporter_threads, importer_threads);
}

// ---- failing calls ----

void fail_next(const char *call, CUresult code) {
  hostcuda<CUresult(const char *, std::uint64_t, CUresult)>("hostcuda_fail")(call, 1, code);
}

constexpr const char *calls_of_importer[] = {
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuCtxGetDevice",
};

int exporter_fails(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_with(9 * MiB, 1);
  fail_next("cuCtxGetDevice", CUDA_ERROR_UNKNOWN);
  CUipcMemHandle none{};
  CLIENT_EXPECT(cuIpcGetMemHandle(&none, block) == CUDA_ERROR_UNKNOWN);
  with.say(handle_of(block));
  with.meet(1);
  pause(50);
  const int before = descriptors();
  with.meet(2);
  with.meet(3);
  // The importer's attempts have ended by now, or do so soon.
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  fail_next("cuMemExportToShareableHandle", CUDA_ERROR_OUT_OF_MEMORY);
  with.meet(4);
  with.meet(5);
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}
int importer_fails(conversation &with) {
  if (use_device_and_memory() != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  with.meet(1);
  CUdeviceptr at = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  const std::size_t memory = allocated();
  with.meet(2);
  const int before = descriptors();
  for (const char *const call : calls_of_importer) {
    at = 0;
    fail_next(call, CUDA_ERROR_OUT_OF_MEMORY);
    const CUresult r = cuIpcOpenMemHandle(&at, handle, lazy);
    fail_next(call, CUDA_SUCCESS);
    if (r == CUDA_SUCCESS) {
      // A call that is not made, or that is made up for.
      std::printf("%s: no failure\n", call);
      CLIENT_CHECK(cuIpcCloseMemHandle(at));
    } else if (r != CUDA_ERROR_OUT_OF_MEMORY && r != CUDA_ERROR_MAP_FAILED) {
      std::fprintf(stderr, "%s: %d\n", call, static_cast<int>(r));
      return 1;
    }
    CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
    CLIENT_EXPECT(comes_true([&] { return allocated() == memory; }));
    CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
    CLIENT_EXPECT(has_pattern(at, 9 * MiB, 1));
    CLIENT_CHECK(cuIpcCloseMemHandle(at));
  }
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  fail_next("cuMemUnmap", CUDA_ERROR_UNKNOWN);
  CLIENT_EXPECT(cuIpcCloseMemHandle(at) == CUDA_ERROR_UNKNOWN);
  CLIENT_EXPECT(has_pattern(at, 9 * MiB, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  with.meet(3);
  with.meet(4);
  CLIENT_EXPECT(cuIpcOpenMemHandle(&at, handle, lazy) == CUDA_ERROR_OUT_OF_MEMORY);
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  with.meet(5);
  return 0;
}
int failing_calls() {
  return run_pair(exporter_fails, importer_fails);
}

// Too few descriptors in the importer, then in the exporter.
int exporter_few_descriptors(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_with(70 * MiB, 1);
  with.say(handle_of(block));
  with.meet(1);
  rlimit all{};
  CLIENT_CHECK(::getrlimit(RLIMIT_NOFILE, &all));
  const rlimit few{static_cast<rlim_t>(descriptors()) + 2, all.rlim_max};
  CLIENT_CHECK(::setrlimit(RLIMIT_NOFILE, &few));
  with.meet(2);
  with.meet(3);
  CLIENT_CHECK(::setrlimit(RLIMIT_NOFILE, &all));
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}
int importer_few_descriptors(conversation &with) {
  if (use_device_and_memory() != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  const int before = descriptors();
  rlimit all{};
  CLIENT_CHECK(::getrlimit(RLIMIT_NOFILE, &all));
  CUdeviceptr at = 0;
  for (const int more : {0, 1, 3, 20, 60}) {
    const rlimit few{static_cast<rlim_t>(before + more), all.rlim_max};
    CLIENT_CHECK(::setrlimit(RLIMIT_NOFILE, &few));
    const CUresult r = cuIpcOpenMemHandle(&at, handle, lazy);
    CLIENT_CHECK(::setrlimit(RLIMIT_NOFILE, &all));
    CLIENT_EXPECT(r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_HANDLE);
    CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  }
  with.meet(1);
  with.meet(2);
  // The exporter sends what it can open.
  const CUresult r = cuIpcOpenMemHandle(&at, handle, lazy);
  CLIENT_EXPECT(r == CUDA_SUCCESS);
  CLIENT_EXPECT(has_pattern(at, 70 * MiB, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  with.meet(3);
  return 0;
}
int few_descriptors() {
  return run_pair(exporter_few_descriptors, importer_few_descriptors);
}

// ---- hostile clients ----

// The socket's name as the library makes it: the pair of numbers that the handle begins with.
int connect_to(const CUipcMemHandle &handle) {
  std::int32_t process = 0;
  std::uint64_t server = 0;
  std::memcpy(&process, handle.reserved + 8, sizeof process);
  std::memcpy(&server, handle.reserved + 16, sizeof server);
  const std::string name = "stillmap-ipc-" + std::to_string(process) + "-" + std::to_string(server);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, name.data(), name.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd, reinterpret_cast<const sockaddr *>(&to), bytes) == 0) return fd;
  ::close(fd);
  return -1;
}

// A message as the library's, with any fields.
struct raw_message {
  std::uint32_t magic = 0x4f484d53;
  std::uint16_t version = 1, kind = 1;
  std::uint32_t bytes = sizeof(CUipcMemHandle), fds = 0;
  CUipcMemHandle handle{};
};

int exporter_hostile(conversation &with) {
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_with(70 * MiB, 1);
  with.say(handle_of(block));
  with.meet(1);
  pause(50);
  const int before = descriptors(), tasks = entries("/proc/self/task");
  with.meet(2);
  with.meet(3);
  CLIENT_EXPECT(comes_true([&] { return descriptors() == before; }));
  CLIENT_EXPECT(comes_true([&] { return entries("/proc/self/task") == tasks; }));
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}
int importer_hostile(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  const auto expect_served = [&] {
    CUdeviceptr at = 0;
    CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
    CLIENT_EXPECT(has_pattern(at, 70 * MiB, 1));
    CLIENT_CHECK(cuIpcCloseMemHandle(at));
    return 0;
  };
  CLIENT_CHECK(expect_served());
  with.meet(1);
  with.meet(2);
  std::mt19937 random(1);
  // Any bytes, of any length, and messages with any fields.
  for (int i = 0; i < 300; ++i) {
    const int fd = connect_to(handle);
    CLIENT_EXPECT(fd >= 0);
    raw_message m;
    m.handle = handle;
    const unsigned what = random() % 8;
    if (what == 1) m.kind = static_cast<std::uint16_t>(random());
    if (what == 2) m.bytes = static_cast<std::uint32_t>(random());
    if (what == 3) m.fds = static_cast<std::uint32_t>(random());
    if (what == 4) m.version = static_cast<std::uint16_t>(random());
    if (what == 5) m.handle.reserved[random() % 64] ^= 1;
    std::vector<unsigned char> bytes(sizeof m);
    std::memcpy(bytes.data(), &m, sizeof m);
    if (what == 6) bytes = pattern(random() % 5000, static_cast<unsigned>(i));
    if (what == 7) bytes.resize(random() % sizeof m);
    (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (random() % 2 == 0) {
      const auto more = pattern(random() % 300, static_cast<unsigned>(i));
      (void)!::send(fd, more.data(), more.size(), MSG_NOSIGNAL);
    }
    ::close(fd);
  }
  CLIENT_CHECK(expect_served());
  // Those that say nothing, and those that ask for pages and do not read them: more than are served at once.
  std::vector<int> silent;
  for (int i = 0; i < 150; ++i) silent.push_back(connect_to(handle));
  CLIENT_CHECK(expect_served());
  std::vector<int> deaf;
  for (int i = 0; i < 30; ++i) {
    const int fd = connect_to(handle);
    raw_message m;
    m.handle = handle;
    (void)!::send(fd, &m, sizeof m, MSG_NOSIGNAL);
    m.kind = 3;
    m.bytes = 0;
    for (int k = 0; k < 10; ++k) (void)!::send(fd, &m, 16, MSG_NOSIGNAL);
    deaf.push_back(fd);
  }
  CLIENT_CHECK(expect_served());
  for (const auto &all : {silent, deaf}) {
    for (const int fd : all) ::close(fd);
  }
  with.meet(3);
  return 0;
}
int hostile_clients() {
  return run_pair(exporter_hostile, importer_hostile);
}

// Another user's process is not served, whatever it knows.
int importer_of_another_user(conversation &with) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto handle = with.hear<CUipcMemHandle>();
    if (use_device_and_memory() != 0) std::_Exit(1);
    // It needs root to become another user.
    if (::geteuid() != 0 || ::setuid(65534) != 0) std::_Exit(0);
    CUdeviceptr at = 0;
    const CUresult r = cuIpcOpenMemHandle(&at, handle, lazy);
    if (r == CUDA_ERROR_MAP_FAILED) std::_Exit(0);
    std::fprintf(stderr, "another user: %d\n", static_cast<int>(r));
    std::_Exit(1);
  }
  CLIENT_EXPECT(exit_status(child) == 0);
  with.meet(1);
  return 0;
}

// ---- captures ----

int exporter_of_captured(conversation &with) {
  if (use_device(0) != 0) return 1;
  with.say(handle_of(block_with(3 * MiB, 1)));
  with.meet(1);
  return 0;
}
int importer_captures(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  const CUstream s = new_stream();
  CUdeviceptr at = 0;
  CUgraph graph = nullptr;
  CLIENT_CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_CHECK(cuMemsetD8Async(at, 7, 3 * MiB, s));
  CLIENT_EXPECT(cuIpcCloseMemHandle(at) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CLIENT_CHECK(cuStreamEndCapture(s, &graph));
  CLIENT_EXPECT(has_pattern(at, 3 * MiB, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  with.meet(1);
  return 0;
}
int another_user() {
  return run_pair(exporter_of_captured, importer_of_another_user);
}
int captures() {
  return run_pair(exporter_of_captured, importer_captures);
}

// Work that uses the memory is waited for.
int importer_with_work(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  const CUstream s = new_stream();
  CUdeviceptr at = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  hold(s);
  CLIENT_CHECK(cuMemsetD8Async(at, 7, 3 * MiB, s));
  {
    late_release later(s);
    CLIENT_CHECK(cuIpcCloseMemHandle(at));
    CLIENT_EXPECT(later.done);
  }
  CLIENT_CHECK(cuStreamSynchronize(s));
  with.meet(1);
  return 0;
}
int queued_work() {
  return run_pair(exporter_of_captured, importer_with_work);
}

// ---- devices ----

int exporter_second_device(conversation &with) {
  if (use_device(1) != 0) return 1;
  const CUdeviceptr block = block_with(3 * MiB, 1);
  if (use_device(0) != 0) return 1;
  with.say(handle_of(block));  // whatever is current
  with.meet(1);
  CLIENT_EXPECT(has_pattern(block, 3 * MiB, 2));
  return 0;
}
int importer_second_device(conversation &with) {
  const auto handle = with.hear<CUipcMemHandle>();
  for (const int current : {0, 1}) {
    if (use_device(current) != 0) return 1;
    CUdeviceptr at = 0;
    CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
    int device = -1;
    CLIENT_CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    CLIENT_EXPECT(device == 1);
    CLIENT_EXPECT(has_pattern(at, 3 * MiB, 1));
    const CUdeviceptr own = block_of(3 * MiB);
    CLIENT_CHECK(cuMemcpyDtoD(own, at, 3 * MiB));
    CLIENT_EXPECT(has_pattern(own, 3 * MiB, 1));
    if (current == 1) CLIENT_CHECK(cuMemcpyHtoD(at, pattern(3 * MiB, 2).data(), 3 * MiB));
    CLIENT_CHECK(cuIpcCloseMemHandle(at));
  }
  with.meet(1);
  return 0;
}
int second_device() {
  return run_pair(exporter_second_device, importer_second_device);
}

// ---- the driver's own ----

// A program without the preload exports what the driver serves.
int exporter_plain(conversation &with) {
  ::unsetenv("LD_PRELOAD");
  ::fcntl(with.fd(), F_SETFD, 0);
  const std::string fd = std::to_string(with.fd());
  ::execl("/proc/self/exe", "preload_ipc", "plain_exporter", fd.c_str(), nullptr);
  return 1;
}
int plain_exporter(conversation &with) {
  if (use_device(0) != 0) return 1;
  with.say(handle_of(block_with(3 * MiB, 1)));
  with.meet(1);
  return 0;
}
int importer_of_plain(conversation &with) {
  if (use_device(0) != 0) return 1;
  const auto handle = with.hear<CUipcMemHandle>();
  CUdeviceptr at = 0;
  CLIENT_CHECK(cuIpcOpenMemHandle(&at, handle, lazy));
  CLIENT_EXPECT(has_pattern(at, 3 * MiB, 1));
  CLIENT_CHECK(cuIpcCloseMemHandle(at));
  with.meet(1);
  return 0;
}
int handles_of_the_driver() {
  return run_pair(exporter_plain, importer_of_plain);
}

// Nothing starts before it is needed; and what the device cannot share has the driver's error.
int starts_late() {
  rlimit files{};
  CLIENT_CHECK(::getrlimit(RLIMIT_NOFILE, &files));
  files.rlim_cur = std::min<rlim_t>(files.rlim_cur, 4096);
  CLIENT_CHECK(::setrlimit(RLIMIT_NOFILE, &files));
  if (use_device(0) != 0) return 1;
  const CUdeviceptr block = block_of(3 * MiB);
  const int tasks = entries("/proc/self/task");
  CUipcMemHandle h{};
  const CUresult r = cuIpcGetMemHandle(&h, block);
  std::printf("get %d threads %d\n", static_cast<int>(r), entries("/proc/self/task") - tasks);
  char capable = 2;
  CLIENT_CHECK(
      cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block));
  CLIENT_EXPECT(capable == (r == CUDA_SUCCESS ? 1 : 0));
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}

constexpr named_case all_cases[] = {
    {"contents", contents},
    {"queries", queries},
    {"twice", twice},
    {"refused", refused},
    {"freed_before", freed_before},
    {"freed_meanwhile", freed_meanwhile},
    {"importer_death", importer_death},
    {"exporter_death", exporter_death},
    {"exporter_exit", exporter_exit},
    {"stopped_exporter", stopped_exporter},
    {"forked_exporter", forked_exporter},
    {"threads", threads},
    {"failing_calls", failing_calls},
    {"few_descriptors", few_descriptors},
    {"hostile_clients", hostile_clients},
    {"another_user", another_user},
    {"captures", captures},
    {"queued_work", queued_work},
    {"second_device", second_device},
    {"handles_of_the_driver", handles_of_the_driver},
    {"starts_late", starts_late},
};

}  // namespace
}  // namespace client

int main(int count, char **words) {
  ::alarm(120);
  if (count == 3 && std::strcmp(words[1], "plain_exporter") == 0) {
    client::conversation with(std::atoi(words[2]));
    return client::plain_exporter(with);
  }
  for (const client::named_case &c : client::all_cases) {
    if (count == 2 && std::strcmp(words[1], c.name) == 0) return c.run();
  }
  return 2;
}
