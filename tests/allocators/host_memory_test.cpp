// Host memory that runs out: each host allocation of each operation of a sequence fails, once, and once
// more with all later ones of that operation. The operation reports it, or is served all the same;
// the books agree with the ledger; the operation succeeds when it is repeated; and nothing leaks.
#include "tests/support/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/address_space.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"
#include "tests/support/op_sequence.h"

namespace stillmap {
namespace {

using testing::checked_heap;
using testing::fail_host_allocation;

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

std::string config_of(const std::string &key) {
  const std::string all = "," + testing::hostcuda_control::config() + ",";
  const std::size_t from = all.find("," + key + "=");
  if (from == std::string::npos) return "";
  const std::size_t value = from + key.size() + 2;
  return all.substr(value, all.find(',', value) - value);
}

// An exception left the library, which may hold locks.
struct escaped : std::runtime_error {
  using runtime_error::runtime_error;
};

class allocator_host_memory : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    profile_ = config_of("profile");
    if (profile_ != "h200" && profile_ != "vgpu-no-vmm") {
      GTEST_SKIP() << "the same on every profile with mapped pages, or without";
    }
  }
  void TearDown() override {
    heap_.reset();
    quota_.reset();
    streams_.clear();
    buffer_test::TearDown();
  }

  // Makes an operation, whose calls of the library are in called(). Until an allocation has failed in
  // this run, the next one does.
  template <class Operation>
  auto asked(const char *name, Operation operation) {
    const std::size_t index = operations_++;
    if (failed_ || index < at_.operation) return operation();
    if (index > at_.operation) at_ = {index, 0};
    name_ = name;
    armed_ = true;
    auto outcome = operation();
    armed_ = false;
    if (!failed_) return outcome;
    EXPECT_EQ(heap_ ? heap_->disagreement() : "", "");
    if (outcome) return outcome;
    EXPECT_TRUE(outcome.error().is(errc::out_of_memory)) << outcome.error().message();
    if (of_device_) return operation();  // what failed was not needed to refuse the request
    EXPECT_EQ(outcome.error().code, std::errc::not_enough_memory) << outcome.error().message();
    return operation();
  }
  template <class Call>
  auto called(Call call) {
    before_call();
    std::optional<decltype(call())> outcome;
    try {
      outcome.emplace(call());
    } catch (const std::bad_alloc &) {
      failing_.reset();
      throw escaped("std::bad_alloc");
    }
    after_call();
    return std::move(*outcome);
  }
  void before_call() {
    if (armed_) failing_.emplace(at_.allocation, all_after_);
  }
  void after_call() {
    if (!failing_) return;
    failed_ = failing_->happened();
    failing_.reset();
  }

  // Operations that must succeed.
  void *allocate(std::size_t bytes, stream_ref s, allocate_options options = {}) {
    const auto block = asked("allocate", [&] { return heap_->allocate(bytes, s, options); });
    if (!block) throw std::runtime_error("allocate: " + block.error().message());
    return *block;
  }
  template <class Operation>
  void must(const char *name, Operation operation) {
    const auto outcome = asked(name, operation);
    if (!outcome) throw std::runtime_error(std::string(name) + ": " + outcome.error().message());
  }
  void free(void *block) {
    must("free", [&] { return heap_->free(block); });
  }
  caching_allocator &heap() { return heap_->heap(); }
  const stream &on(std::size_t i) const { return streams_[i]; }

  void begin();
  void blocks_of_all_kinds();
  void memory_moves();
  void pools_and_streams();
  void reports();
  void end();
  // Each point of the sequence.
  std::uint64_t sweep(bool all_after);
  std::string run();

  static constexpr std::size_t nowhere = SIZE_MAX;
  struct point {
    std::size_t operation = 0;
    std::uint64_t allocation = 0;
  };
  std::string profile_;
  point at_;
  bool all_after_ = false;
  bool armed_ = false, failed_ = false;
  bool of_device_ = false;  // the request fails for want of the device's memory, too
  const char *name_ = "";
  std::size_t operations_ = 0;
  std::size_t arenas_ = 0;  // where nothing fails
  std::optional<fail_host_allocation> failing_;
  std::unique_ptr<checked_heap> heap_;
  std::shared_ptr<shared_quota> quota_;
  std::vector<stream> streams_;
  std::string quota_path_;
};

void allocator_host_memory::begin() {
  for (int i = 0; i < 6; ++i) streams_.push_back(make_stream());
  quota_path_ = ::testing::TempDir() + "stillmap-host-memory-quota." + std::to_string(getpid());
  std::filesystem::remove(quota_path_);
  must("shared_quota::open", [&]() -> status {
    auto made = called([&] { return shared_quota::open(quota_path_, {.limit = 1024 * MiB}); });
    if (!made) return tl::unexpected<error>(made.error());
    quota_ = std::move(*made);
    return {};
  });
  must("create", [&]() -> status {
    caching_allocator_options options;
    options.quota = quota_;
    auto made = called([&] { return caching_allocator::create(dev(), std::move(options)); });
    if (!made) return tl::unexpected<error>(made.error());
    heap_ = std::make_unique<checked_heap>(dev(), std::move(*made));
    return {};
  });
  heap_->contents = false;
  heap_->before_call = [this] { before_call(); };
  heap_->after_call = [this] { after_call(); };
  must("record_history",
       [&] { return called([&] { return heap().record_history({.events = 64}); }); });
}

void allocator_host_memory::blocks_of_all_kinds() {
  const stream_ref s = on(0), t = on(1), u = on(2);
  void *const small = allocate(300, s);
  std::vector<void *> slabs, sizes;
  for (int i = 0; i < 3 * 128; ++i) slabs.push_back(allocate(512, s));
  for (int i = 0; i < 70; ++i) sizes.push_back(allocate(16 * KiB, s));
  for (std::size_t i = 0; i < 140; ++i) sizes.push_back(allocate(9 * KiB + i * 512, s));
  void *const large = allocate(2 * page() + 1000, s);
  allocate(page() / 2, s);
  allocate_options how;
  how.alignment = 1 * MiB;
  void *const aligned = allocate(100 * KiB, t, how);
  how = {};
  how.zero = true;
  void *const zero = allocate(12 * KiB, u, how);
  for (void *const block : {small, large, slabs[5], aligned}) {
    for (const stream_ref other : {u, s}) {
      must("record_use", [&] { return heap_->use_on(block, other); });
    }
  }
  for (void *const block : {small, large, slabs[5], aligned}) free(block);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (i != 5 && i != 200) free(slabs[i]);
  }
  for (void *const block : sizes) free(block);
  must("free on another stream", [&] { return heap_->free_on(zero, t); });
}

// 17 pages are free on the device, or 30 where none moves.
void allocator_host_memory::memory_moves() {
  const stream_ref s = on(0), t = on(1), u = on(2);
  // Within the stream of a program that repeats itself: addresses that stay mapped, and get their
  // pages back.
  const stream_ref alone = on(5);
  for (int i = 0; i < 34; ++i) free(allocate(page(), alone));
  void *const left = allocate(2 * page(), alone), *const wall = allocate(page(), alone);
  void *const right = allocate(2 * page(), alone), *const end = allocate(page(), alone);
  free(left);
  free(right);
  heap().set_soft_limit(heap().stats().total.committed);
  for (int i = 0; i < 2; ++i) {
    free(allocate(4 * page(), alone));
    void *const back = allocate(2 * page(), alone);
    free(allocate(2 * page(), alone));
    free(back);
  }
  heap().set_soft_limit(SIZE_MAX);
  free(wall);
  free(end);
  // Lent to another stream, and returned.
  free(allocate(5 * page(), alone));
  heap().set_limit(heap().stats().total.committed);
  heap_->settle();
  free(allocate(5 * page(), on(2)));
  heap_->settle();
  const std::uint64_t recalled = heap().stats().pages_recalled;
  const driver_counts called_before = counts();
  free(allocate(5 * page(), alone));
  if (at_.operation == nowhere && has_vmm()) {
    EXPECT_GT(heap().stats().pages_recalled, recalled);
    EXPECT_EQ((counts() - called_before)[driver_call::StreamWaitEvent], 1u);
  }
  heap().set_limit(SIZE_MAX);
  // Between streams.
  void *const first = allocate(4 * page(), t);
  void *const apart = allocate(page(), u);
  free(first);
  heap_->settle();
  void *const moved = allocate(6 * page(), s);
  free(moved);
  free(apart);
  heap_->settle();
  free(allocate(12 * page(), t));
  heap_->settle();
  free(allocate(8 * page(), u));
  heap_->settle();
  if (at_.operation == nowhere) {  // the sequence goes where it is meant to go
    EXPECT_EQ(heap().stats().pages_moved > 0, has_vmm());
    EXPECT_EQ(heap().stats().pages_recalled > 0, has_vmm());
  }
  must("trim", [&]() -> status { return heap_->trim(2 * page()); });
}

void allocator_host_memory::pools_and_streams() {
  const stream_ref s = on(0), t = on(1), v = on(3), w = on(4);
  private_pool p;
  must("create_pool", [&]() -> status {
    const auto made = called([&] { return heap().create_pool(); });
    if (!made) return tl::unexpected<error>(made.error());
    p = *made;
    return {};
  });
  for (const stream_ref each : {s, v}) {
    must("begin_allocate_to_pool",
         [&] { return called([&] { return heap().begin_allocate_to_pool(p, each); }); });
  }
  must("retain_pool", [&] { return called([&] { return heap().retain_pool(p); }); });
  void *const inside = allocate(3 * page(), s), *const other = allocate(700, v);
  for (const stream_ref each : {s, v}) {
    must("end_allocate_to_pool",
         [&] { return called([&] { return heap().end_allocate_to_pool(p, each); }); });
  }
  free(inside);
  free(other);
  const std::vector<stream_ref> replayed_on{t, on(2)};
  must("release_pool", [&] { return called([&] { return heap().release_pool(p); }); });
  must("release_pool", [&] { return called([&] { return heap().release_pool(p, replayed_on); }); });
  void *const last = allocate(2 * page(), v);
  free(last);
  must("forget_stream", [&] { return called([&] { return heap().forget_stream(v); }); });
  free(allocate(2 * page(), w));
}

void allocator_host_memory::reports() {
  must("stats", [&] {
    return called([&]() -> status {
      static_cast<void>(heap().stats());
      return {};
    });
  });
  must("map", [&] { return called([&] { return heap().map(); }); });
  must("history", [&] { return called([&] { return heap().history(); }); });
  must("shared_quota::stats", [&] { return called([&] { return quota_->stats(); }); });
  // Without room: no memory of the device.
  const std::size_t limit = heap().limit();
  heap().set_limit(heap().stats().total.committed);
  of_device_ = true;
  const auto refused =
      asked("allocate too much", [&] { return heap_->allocate(60 * page(), on(2)); });
  if (refused) throw std::runtime_error("allocated more than the limit");
  EXPECT_TRUE(refused.error().is(errc::out_of_memory));
  EXPECT_NE(refused.error().code, std::errc::not_enough_memory);
  of_device_ = false;
  heap().set_limit(limit);
}

void allocator_host_memory::end() {
  heap_->settle();
  const std::size_t arenas = heap().stats().arenas.size();
  if (at_.operation == nowhere) arenas_ = arenas;
  EXPECT_EQ(arenas, arenas_) << "one that nothing frees any more";
  must("empty_cache", [&] { return called([&] { return heap().empty_cache(); }); });
  heap_->drop_all();
  heap_->settle();
  EXPECT_TRUE(heap().empty_cache());
  heap_->settle();
  EXPECT_TRUE(heap().empty_cache());
  EXPECT_EQ(heap_->disagreement(), "");
  EXPECT_EQ(heap().stats().total.committed, 0u);
  EXPECT_EQ(heap().stats().total.pending_free, 0u);
  EXPECT_EQ(quota_->stats()->own, 0u);
  // The destructor finds blocks, free memory and aliases.
  allocate(3 * page(), on(0));
  free(allocate(5 * page(), on(0)));
  free(allocate(6 * page(), on(0)));
  heap_->settle();
  std::unique_ptr<caching_allocator> gone = heap_->release();
  heap_.reset();
  must("destroy", [&] {
    return called([&]() -> status {
      gone.reset();
      return {};
    });
  });
  must("shared_quota::remove",
       [&] { return called([&] { return shared_quota::remove(quota_path_); }); });
  quota_.reset();
  streams_.clear();
}

// One run of the sequence; what went wrong.
std::string allocator_host_memory::run() {
  // The same calls every time.
  restart_as(testing::machine_config("memory=64M,unbacked,schedule=seeded:3").c_str());
  leave_free(has_vmm() ? 17 : 30);
  operations_ = 0;
  failed_ = armed_ = of_device_ = false;
  name_ = "";
  const std::uint64_t reported = background_error_count();
  try {
    begin();
    blocks_of_all_kinds();
    memory_moves();
    pools_and_streams();
    reports();
    end();
  } catch (const escaped &e) {
    // A lock may be held for ever.
    static_cast<void>(heap_.release());
    return std::string(e.what()) + " left the library";
  } catch (const std::runtime_error &e) {
    return e.what();
  }
  if (background_error_count() != reported) return "a background error";
  if (dev().space().stats().live_mappings != 0) return "mappings are left";
  if (dev().space().stats().live_blocks != 0) return "reservations are left";
  if (dev().space().stats().mapped_bytes != 0) return "chunks are left";
  return HasFailure() ? "see above" : "";
}

std::uint64_t allocator_host_memory::sweep(bool all_after) {
  all_after_ = all_after;
  at_ = {};
  const std::uint64_t step = testing::sweep_stride(5);
  for (std::uint64_t points = 0;; ++points) {
    const std::string wrong = run();
    if (!wrong.empty()) {
      ADD_FAILURE() << "operation " << at_.operation << " (" << name_ << "), allocation "
                    << at_.allocation << (all_after ? " and all later ones" : "") << ": " << wrong;
      return points;
    }
    if (!failed_) return points;
    at_.allocation += step;
  }
}

TEST_F(allocator_host_memory, each_allocation_of_a_sequence_fails) {
  at_ = {nowhere, 0};
  ASSERT_EQ(run(), "");
  const std::uint64_t once = sweep(false);
  if (HasFailure()) return;
  const std::uint64_t all = sweep(true);
  if (HasFailure()) return;
  const std::uint64_t least = 500 / testing::sweep_stride(5);
  EXPECT_GT(once, least);
  EXPECT_GT(all, least);
  std::printf("note: host allocation sweep of the allocator on %s: %llu points\n", profile_.c_str(),
              static_cast<unsigned long long>(once + all));
}

}  // namespace
}  // namespace stillmap
