// The driver's rules that Stillmap relies on beside the VMM calls: order within and between
// streams, events, memset, pinned memory, and the stream-ordered allocator where a driver has one.
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

// Keeps a stream from going on until opened. Opens at the latest when it goes out of scope, and by
// itself after a while, so that a driver call which waits for the stream fails a test, not hangs
// it.
class gate {
 public:
  gate() = default;
  gate(const gate &) = delete;
  gate &operator=(const gate &) = delete;
  ~gate() { open(); }
  void close_on(CUstream s) {
    MUST(cu().LaunchHostFunc(
        s,
        [](void *self) {
          auto *g = static_cast<gate *>(self);
          std::unique_lock lock(g->mutex_);
          // The system's clock: older thread sanitizers do not know a wait by the steady one.
          const auto patience = std::chrono::system_clock::now() + std::chrono::seconds(10);
          g->gave_up_ = !g->opened_.wait_until(lock, patience, [g] { return g->open_; });
        },
        this));
    stream_ = s;
  }
  // Returns when the stream has passed, so that a gate can go away. The driver does the waiting:
  // one that runs work only when asked would never get there otherwise.
  void open() {
    unlock();
    if (stream_ != nullptr) {
      EXPECT_EQ(cu().StreamSynchronize(stream_), CUDA_SUCCESS);
    }
    stream_ = nullptr;
  }
  // Whether something waited for the stream while it should not have.
  bool gave_up() {
    std::lock_guard lock(mutex_);
    return gave_up_;
  }
  // Opens without waiting: the stream passes when it gets there.
  void unlock() {
    std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false, gave_up_ = false;
  CUstream stream_ = nullptr;
};

// hostcuda's seeded schedule runs queued work inside the call that asks for it, so that nothing can
// be seen pending there.
#define SKIP_WHERE_QUERIES_RUN_WORK()           \
  if (hostcuda_is("schedule=seeded"))           \
  SKIP_BECAUSE(                                 \
      "hostcuda's seeded schedule: nothing is " \
      "pending")

class pinned {
 public:
  explicit pinned(std::size_t bytes) { MUST(cu().MemHostAlloc(&at, bytes, 0)); }
  pinned(const pinned &) = delete;
  pinned &operator=(const pinned &) = delete;
  ~pinned() { EXPECT_EQ(cu().MemFreeHost(at), CUDA_SUCCESS); }
  unsigned char *bytes() const { return static_cast<unsigned char *>(at); }
  void *at = nullptr;
};

bool all_are(const unsigned char *at, std::size_t n, unsigned char value) {
  for (std::size_t i = 0; i < n; ++i)
    if (at[i] != value) return false;
  return true;
}

class streams : public driver_test {
 protected:
  static constexpr std::size_t bytes = 1 * mib;
};

TEST_F(streams, run_what_is_queued_in_order) {
  allocated a(bytes), b(bytes);
  pinned first(bytes), second(bytes);
  stream s;
  MUST(cu().MemsetD8Async(a.at, 0x11, bytes, s.handle));
  MUST(cu().MemcpyDtoDAsync(b.at, a.at, bytes, s.handle));
  MUST(cu().MemsetD8Async(a.at, 0x22, bytes, s.handle));
  MUST(cu().MemcpyDtoHAsync(first.at, b.at, bytes, s.handle));
  MUST(cu().MemcpyDtoHAsync(second.at, a.at, bytes, s.handle));
  MUST(cu().StreamSynchronize(s.handle));
  EXPECT_TRUE(all_are(first.bytes(), bytes, 0x11));
  EXPECT_TRUE(all_are(second.bytes(), bytes, 0x22));
}

TEST_F(streams, copy_from_pinned_memory_when_their_turn_comes) {
  allocated device(bytes);
  pinned host(bytes), back(bytes);
  stream s;
  std::memset(host.at, 0x33, bytes);
  SKIP_WHERE_QUERIES_RUN_WORK();
  gate g;
  g.close_on(s.handle);
  MUST(cu().MemcpyHtoDAsync(device.at, host.at, bytes, s.handle));
  MUST(cu().MemcpyDtoHAsync(back.at, device.at, bytes, s.handle));
  std::memset(host.at, 0x44, bytes);  // before the copy could begin
  g.open();
  MUST(cu().StreamSynchronize(s.handle));
  EXPECT_TRUE(all_are(back.bytes(), bytes, 0x44));
}

TEST_F(streams, query_tells_pending_from_done) {
  stream s;
  event e;
  EXPECT_EQ(cu().StreamQuery(s.handle), CUDA_SUCCESS);
  EXPECT_EQ(cu().EventQuery(e.handle), CUDA_SUCCESS) << "an event never recorded is done";
  SKIP_WHERE_QUERIES_RUN_WORK();
  gate g;
  g.close_on(s.handle);
  MUST(cu().EventRecord(e.handle, s.handle));
  EXPECT_EQ(cu().StreamQuery(s.handle), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cu().EventQuery(e.handle), CUDA_ERROR_NOT_READY);
  g.open();
  EXPECT_EQ(cu().EventSynchronize(e.handle), CUDA_SUCCESS);
  EXPECT_EQ(cu().EventQuery(e.handle), CUDA_SUCCESS);
  EXPECT_EQ(cu().StreamSynchronize(s.handle), CUDA_SUCCESS);
  EXPECT_EQ(cu().StreamQuery(s.handle), CUDA_SUCCESS);
}

TEST_F(streams, wait_for_events_of_each_other) {
  allocated memory(bytes);
  pinned back(bytes);
  stream writer, reader;
  event written;
  MUST(cu().MemsetD8(memory.at, 0x55, bytes));
  SKIP_WHERE_QUERIES_RUN_WORK();
  gate g;
  g.close_on(writer.handle);
  MUST(cu().MemsetD8Async(memory.at, 0x66, bytes, writer.handle));
  MUST(cu().EventRecord(written.handle, writer.handle));
  MUST(cu().StreamWaitEvent(reader.handle, written.handle, 0));
  MUST(cu().MemcpyDtoHAsync(back.at, memory.at, bytes, reader.handle));
  EXPECT_EQ(cu().StreamQuery(reader.handle), CUDA_ERROR_NOT_READY);
  g.open();
  MUST(cu().StreamSynchronize(reader.handle));
  EXPECT_TRUE(all_are(back.bytes(), bytes, 0x66));
}

TEST_F(streams, the_legacy_stream_waits_for_blocking_streams) {
  allocated memory(bytes);
  pinned back(bytes);
  stream blocking(CU_STREAM_DEFAULT);
  MUST(cu().MemsetD8(memory.at, 0x77, bytes));
  SKIP_WHERE_QUERIES_RUN_WORK();
  gate g;
  g.close_on(blocking.handle);
  MUST(cu().MemsetD8Async(memory.at, 0x88, bytes, blocking.handle));
  std::thread opener([&g] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    g.unlock();
  });
  const CUresult got = cu().MemcpyDtoH(back.at, memory.at, bytes);
  opener.join();
  MUST(got);
  EXPECT_TRUE(all_are(back.bytes(), bytes, 0x88));
}

TEST_F(streams, the_legacy_stream_passes_non_blocking_streams) {
  allocated memory(bytes), other(bytes);
  pinned back(bytes);
  stream independent;
  MUST(cu().MemsetD8(memory.at, 0x12, bytes));
  MUST(cu().CtxSynchronize());
  SKIP_WHERE_QUERIES_RUN_WORK();
  gate g;
  g.close_on(independent.handle);
  MUST(cu().MemsetD8Async(other.at, 0x13, bytes, independent.handle));
  MUST(cu().MemcpyDtoH(back.at, memory.at, bytes));
  EXPECT_TRUE(all_are(back.bytes(), bytes, 0x12));
  EXPECT_EQ(cu().StreamQuery(independent.handle), CUDA_ERROR_NOT_READY);
  g.open();
  EXPECT_FALSE(g.gave_up());
  MUST(cu().StreamSynchronize(independent.handle));
}

TEST_F(streams, memset_writes_what_it_was_asked_and_no_more) {
  allocated memory(64 * kib);
  MUST(cu().MemsetD8(memory.at, 0xff, 64 * kib));
  MUST(cu().MemsetD8(memory.at + 101, 0x01, 1000));
  MUST(cu().MemsetD32(memory.at + 32 * kib, 0x04030201, 1024));
  std::vector<unsigned char> seen(64 * kib);
  MUST(cu().MemcpyDtoH(seen.data(), memory.at, seen.size()));
  EXPECT_TRUE(all_are(&seen[0], 101, 0xff));
  EXPECT_TRUE(all_are(&seen[101], 1000, 0x01));
  EXPECT_TRUE(all_are(&seen[1101], 32 * kib - 1101, 0xff));
  for (std::size_t i = 0; i < 4096; ++i) ASSERT_EQ(seen[32 * kib + i], 1 + i % 4) << i;
  EXPECT_TRUE(all_are(&seen[36 * kib], 28 * kib, 0xff));
}

TEST_F(streams, pinned_memory_is_known_as_host_memory) {
  pinned host(64 * kib);
  unsigned type = 0;
  MUST(cu().PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                reinterpret_cast<std::uintptr_t>(host.at)));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  std::memset(host.at, 0x21, 64 * kib);
  EXPECT_TRUE(all_are(host.bytes(), 64 * kib, 0x21));
}

// The thread that frees is often another one than the thread that allocates.
TEST_F(streams, memory_is_freed_without_a_current_context) {
  CUdeviceptr block = 0;
  void *host = nullptr;
  MUST(cu().MemAlloc(&block, mib));
  MUST(cu().MemHostAlloc(&host, mib, 0));
  std::thread([&] {
    EXPECT_EQ(cu().MemFree(block), CUDA_SUCCESS);
    EXPECT_EQ(cu().MemFreeHost(host), CUDA_SUCCESS);
  }).join();
}

TEST_F(streams, allocate_and_free_in_their_own_order) {
  SKIP_WITHOUT(MemAllocAsync);
  if (attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0)
    SKIP_BECAUSE("the device has no memory pools (attribute 115 is 0)");
  stream s;
  pinned back(bytes);
  CUdeviceptr at = 0;
  MUST(cu().MemAllocAsync(&at, bytes, s.handle));
  EXPECT_EQ(cu().MemsetD8Async(at, 0x31, bytes, s.handle), CUDA_SUCCESS);
  EXPECT_EQ(cu().MemcpyDtoHAsync(back.at, at, bytes, s.handle), CUDA_SUCCESS);
  EXPECT_EQ(cu().MemFreeAsync(at, s.handle), CUDA_SUCCESS);
  MUST(cu().StreamSynchronize(s.handle));
  EXPECT_TRUE(all_are(back.bytes(), bytes, 0x31));
  CUmemoryPool pool = nullptr;
  MUST(cu().DeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(cu().MemPoolTrimTo(pool, 0), CUDA_SUCCESS);
}

class mapped_streams : public vmm_test {};

TEST_F(mapped_streams, copy_and_set_across_adjacent_mappings) {
  reserved range(4 * page);
  physical a(page), b(2 * page), c(page);
  mapped first(range.at, a), second(range.at + page, b), third(range.at + 3 * page, c);
  MUST(grant(range.at, range.bytes));
  const auto data = pattern(range.bytes, 7);
  pinned host(range.bytes), back(range.bytes);
  std::memcpy(host.at, data.data(), data.size());
  stream s;
  allocated copy(range.bytes);
  MUST(cu().MemcpyHtoDAsync(range.at, host.at, range.bytes, s.handle));
  MUST(cu().MemcpyDtoDAsync(copy.at, range.at, range.bytes, s.handle));
  MUST(cu().MemsetD8Async(range.at + page / 2, 0x41, 2 * page, s.handle));
  MUST(cu().MemcpyDtoHAsync(back.at, range.at, range.bytes, s.handle));
  MUST(cu().StreamSynchronize(s.handle));
  EXPECT_TRUE(holds_pattern(copy.at, range.bytes, 7));
  const std::size_t from = page / 2, to = from + 2 * page;
  EXPECT_EQ(std::memcmp(back.at, data.data(), from), 0);
  EXPECT_TRUE(all_are(back.bytes() + from, 2 * page, 0x41));
  EXPECT_EQ(std::memcmp(back.bytes() + to, data.data() + to, range.bytes - to), 0);
}

TEST_F(mapped_streams, a_copy_over_a_hole_is_refused_and_the_context_lives) {
  reserved range(3 * page);
  physical a(page), c(page);
  mapped first(range.at, a), third(range.at + 2 * page, c);
  MUST(grant(first.at, page));
  MUST(grant(third.at, page));
  std::vector<unsigned char> data(3 * page);
  EXPECT_EQ(cu().MemcpyHtoD(range.at, data.data(), data.size()), CUDA_ERROR_INVALID_VALUE);
  write_pattern(third.at, page, 9);
  EXPECT_TRUE(holds_pattern(third.at, page, 9));
}

// How a buffer grows under a running stream: earlier work goes on, later work sees the new pages.
TEST_F(mapped_streams, mapping_behind_pending_work_does_not_wait_for_it) {
  reserved range(2 * page);
  physical a(page), b(page);
  mapped first(range.at, a);
  MUST(grant(first.at, page));
  stream s;
  SKIP_WHERE_QUERIES_RUN_WORK();
  gate g;
  g.close_on(s.handle);
  MUST(cu().MemsetD8Async(first.at, 0x51, page, s.handle));
  {
    mapped second(range.at + page, b);
    MUST(grant(second.at, page));
    MUST(cu().MemsetD8Async(second.at, 0x52, page, s.handle));
    g.open();
    EXPECT_FALSE(g.gave_up()) << "map or set access waited for work that does not concern it";
    MUST(cu().StreamSynchronize(s.handle));
    std::vector<unsigned char> seen(range.bytes);
    MUST(cu().MemcpyDtoH(seen.data(), range.at, seen.size()));
    EXPECT_TRUE(all_are(seen.data(), page, 0x51));
    EXPECT_TRUE(all_are(seen.data() + page, page, 0x52));
  }
}

}  // namespace
}  // namespace stillmap::conformance
