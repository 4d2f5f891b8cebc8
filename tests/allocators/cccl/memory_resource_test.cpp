// cccl::memory_resource in the interface that the CCCL of this build has: what it gives out, to whom, when
// memory is usable, what it throws, and how long it lives.
#include <gtest/gtest.h>

#ifdef STILLMAP_HAVE_CCCL

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "stillmap/allocators/cccl/memory_resource.h"
#include "tests/allocators/cccl/dialect.h"
#include "tests/support/buffer_test.h"
#include "tests/support/refuse_each.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using cccl::memory_resource;
using testing::allocate;
using testing::allocate_sync;
using testing::async_ref;
using testing::deallocate;
using testing::deallocate_sync;
using testing::device_accessible;
using testing::sync_ref;
using namespace literals;

#if CCCL_VERSION >= 3001000
static_assert(cuda::mr::resource_with<memory_resource, device_accessible>);
static_assert(!cuda::mr::resource_with<memory_resource, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::async_resource_with<memory_resource, device_accessible>);
static_assert(!cuda::mr::async_resource_with<memory_resource, cuda::mr::host_accessible>);
#endif
static_assert(std::is_nothrow_copy_constructible_v<memory_resource>);
static_assert(std::is_nothrow_move_constructible_v<memory_resource>);
// any_resource keeps it without an allocation of its own.
static_assert(sizeof(memory_resource) <= 3 * sizeof(void *));

class cccl_resource : public testing::buffer_test {
 protected:
  std::shared_ptr<caching_allocator> heap(std::size_t limit = SIZE_MAX) const {
    caching_allocator_options options;
    options.limit = limit;
    auto made = caching_allocator::create(dev(), std::move(options));
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  static device_address address(const void *p) {
    return device_address(reinterpret_cast<std::uintptr_t>(p));
  }
  static std::size_t live(const caching_allocator &a) { return a.stats().total.live; }
};

TEST_F(cccl_resource, blocks_are_the_allocators_and_are_reused_on_their_stream_at_once) {
  const stream s = make_stream();
  const auto h = heap();
  memory_resource r(h);
  void *const first = allocate(r, s, 100'000);
  EXPECT_TRUE(h->owns(first));
  testing::put(dev(), address(first), testing::pattern(100'000, 7));
  EXPECT_TRUE(testing::holds(dev(), address(first), 100'000, 7));
  testing::hold(s.get());
  deallocate(r, s, first, 100'000);
  const driver_counts before = counts();
  void *const again = allocate(r, s, 100'000);
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_EQ(again, first);
  testing::release(s.get());
  deallocate(r, s, again, 100'000);
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_resource, a_block_freed_on_another_stream_waits_for_that_stream) {
  const stream s = make_stream(), t = make_stream();
  const auto h = heap();
  memory_resource r(h);
  void *const first = allocate(r, s, 5_MiB);
  testing::hold(t.get());
  deallocate(r, t, first, 5_MiB);
  void *const other = allocate(r, s, 5_MiB);
  EXPECT_NE(other, first);
  testing::release(t.get());
  deallocate(r, s, other, 5_MiB);
}

TEST_F(cccl_resource, memory_for_all_streams_is_behind_what_others_still_do_with_its_pages) {
  STILLMAP_NEEDS_VMM();
  const stream s = make_stream();
  const auto h = heap(4 * page());
  memory_resource r(h);
  void *const all = allocate(r, s, 4 * page());
  testing::hold(s.get());
  deallocate(r, s, all, 4 * page());
  std::atomic<bool> released = false;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    released = true;
    testing::release(s.get());
  });
  void *const block = allocate_sync(r, 4 * page());
  EXPECT_TRUE(released) << "the pages had work queued on them";
  later.join();
  deallocate_sync(r, block, 4 * page());
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_resource, nothing_is_nullptr) {
  const stream s = make_stream();
  memory_resource r(heap());
  EXPECT_EQ(allocate(r, s, 0), nullptr);
  EXPECT_EQ(allocate_sync(r, 0), nullptr);
  deallocate(r, s, nullptr, 0);
  deallocate_sync(r, nullptr, 0);
}

TEST_F(cccl_resource, alignments_up_to_the_allocators_limit_and_no_other) {
  const stream s = make_stream();
  const auto h = heap();
  memory_resource r(h);
  async_ref ref(r);
  for (const std::size_t alignment :
       {std::size_t{1}, std::size_t{16}, std::size_t{512}, 4_KiB, 1_MiB}) {
    void *const a = allocate(ref, s, 1000, alignment);
    void *const b = allocate_sync(ref, 1000, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % alignment, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b) % alignment, 0u);
    deallocate(ref, s, a, 1000, alignment);
    deallocate_sync(ref, b, 1000, alignment);
  }
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{2} << 30}) {
    EXPECT_THROW((void)allocate(ref, s, 1000, alignment), std::invalid_argument) << alignment;
    EXPECT_THROW((void)allocate_sync(ref, 1000, alignment), std::invalid_argument) << alignment;
  }
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_resource, out_of_memory_is_ccls_own_exception_and_changes_nothing) {
  const stream s = make_stream();
  const auto h = heap(8 * page());
  memory_resource r(h);
  async_ref ref(r);
  for (const bool sync : {false, true}) {
    try {
      (void)(sync ? allocate_sync(ref, 9 * page()) : allocate(ref, s, 9 * page()));
      ADD_FAILURE() << "more than the limit";
    } catch (const cuda::cuda_error &e) {
      EXPECT_NE(std::string(e.what()).find("limit"), std::string::npos) << e.what();
#if CCCL_VERSION >= 3001000
      EXPECT_EQ(e.status(), cudaErrorMemoryAllocation);
#else
      EXPECT_EQ(std::string(e.what()).find("cudaError 2: "), 0u) << e.what();
#endif
    }
  }
  EXPECT_EQ(live(*h), 0u);
  void *const block = allocate(ref, s, page());
  deallocate(ref, s, block, page());
}

TEST_F(cccl_resource, equal_ones_have_the_same_allocator_and_free_each_others_blocks) {
  const stream s = make_stream();
  const auto h = heap(), other = heap();
  memory_resource a(h), b(h), c(other);
  const memory_resource copy = a;
  EXPECT_TRUE(a == copy);
  EXPECT_TRUE(a == b);
  EXPECT_FALSE(a == c);
  EXPECT_TRUE(a != c);
  EXPECT_TRUE(async_ref(a) == async_ref(b));
  EXPECT_FALSE(async_ref(a) == async_ref(c));
  EXPECT_FALSE(sync_ref(a) == sync_ref(c));
  deallocate(b, s, allocate(a, s, 1000), 1000);
  deallocate_sync(b, allocate_sync(a, 1000), 1000);
  deallocate_sync(b, allocate(a, s, 1000), 1000);
  deallocate(b, s, allocate_sync(a, 1000), 1000);
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_resource, null_streams_are_one) {
  const auto h = heap();
  memory_resource r(h);
  const stream_ref null = stream_ref::legacy();
  const stream_ref named(reinterpret_cast<stream_handle>(0x1));  // cudaStreamLegacy
  void *const first = allocate(r, null, 5_MiB);
  deallocate(r, named, first, 5_MiB);
  void *const again = allocate(r, named, 5_MiB);
  EXPECT_EQ(again, first);
  deallocate(r, null, again, 5_MiB);
  EXPECT_EQ(h->stats().arenas.size(), 1u);
}

// A container keeps its stream's handle, and may end after the stream.
TEST_F(cccl_resource, a_block_may_outlive_its_stream) {
  const auto h = heap();
  memory_resource r(h);
  auto ended = std::make_unique<stream>(make_stream());
  const stream_ref gone(ended->get());
  void *const on_it = allocate(r, gone, 5_MiB), *const elsewhere = allocate(r, gone, 5_MiB);
  ended.reset();
  deallocate(r, gone, on_it, 5_MiB);
  const stream s = make_stream();
  deallocate(r, s, elsewhere, 5_MiB);
  EXPECT_EQ(live(*h), 0u);
  ASSERT_TRUE(h->empty_cache());
  EXPECT_EQ(h->stats().total.committed, 0u);
}

TEST_F(cccl_resource, copies_keep_the_allocator) {
  const stream s = make_stream();
  std::weak_ptr<caching_allocator> watched;
  {
    auto first = std::make_unique<memory_resource>(heap());
    watched = first->allocator();
    void *const block = allocate(*first, s, 3_MiB);
    void *const large = allocate_sync(*first, 3_MiB);
    memory_resource copy = *first;
    const memory_resource moved = std::move(*first);
    EXPECT_TRUE(*first == copy) << "one that was moved from";
    first.reset();
    deallocate(copy, s, block, 3_MiB);
    deallocate_sync(copy, large, 3_MiB);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(cccl_resource, the_last_copy_may_leave_blocks_behind) {
  const stream s = make_stream();
  memory_resource r(heap());
  EXPECT_NE(allocate(r, s, 3_MiB), nullptr);
  EXPECT_NE(allocate_sync(r, 3_MiB), nullptr);
  // The fixture finds what is left on the device.
}

TEST_F(cccl_resource, an_allocator_outlives_its_resources_and_keeps_their_memory) {
  const auto h = heap();
  for (int i = 0; i < 50; ++i) {
    memory_resource r(h);
    deallocate_sync(r, allocate_sync(r, 2_MiB), 2_MiB);
  }
  // 20 MiB is the least that it takes where there is no VMM.
  EXPECT_LE(h->stats().total.committed, 20_MiB) << "of 50 resources, each with its own stream";
}

TEST_F(cccl_resource, a_block_of_somebody_else_is_reported_and_left_alone) {
  expect_unreturnable();
  const stream s = make_stream();
  memory_resource r(heap()), other(heap());
  void *const block = allocate(r, s, 1000);
  const std::uint64_t before = background_error_count();
  deallocate(other, s, block, 1000);
  deallocate_sync(other, block, 1000);
  EXPECT_EQ(background_error_count(), before + 2);
  deallocate(r, s, block, 1000);
  deallocate(r, s, block, 1000);
  EXPECT_EQ(background_error_count(), before + 3) << "twice";
}

TEST_F(cccl_resource, no_allocator_is_refused) {
  EXPECT_THROW(memory_resource(nullptr), std::invalid_argument);
}

TEST_F(cccl_resource, threads_share_one_and_have_copies) {
  const auto h = heap();
  memory_resource shared(h);
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto made = stream::create(dev());
      if (!made) {
        ++failures;
        return;
      }
      memory_resource own = shared;
      memory_resource &r = t % 2 == 0 ? own : shared;
      try {
        for (int i = 0; i < 200; ++i) {
          const std::size_t bytes = std::size_t(i % 7 + 1) * 100'000;
          void *const a = allocate(r, *made, bytes);
          void *const b = allocate_sync(r, bytes);
          if (a == b) ++failures;
          deallocate(r, *made, a, bytes);
          deallocate_sync(r, b, bytes);
        }
      } catch (const std::exception &) {
        ++failures;
      }
      if (!h->forget_stream(*made)) ++failures;
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_resource, each_failed_driver_call_is_an_exception_that_leaves_no_block) {
  STILLMAP_NEEDS_HOSTCUDA();
  const auto run = [&] {
    const auto h = heap();
    memory_resource r(h);
    bool done = true;
    try {
      void *const block = allocate_sync(r, 3 * page());
      deallocate_sync(r, block, 3 * page());
    } catch (const cuda::cuda_error &) {
      done = false;
    }
    EXPECT_EQ(live(*h), 0u);
    return done;
  };
  // Some of these the allocator makes good in another way.
  static constexpr const char *memory[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess",
                                           "cuMemAlloc", "cuMemAddressReserve"};
  testing::refuse_each(memory, run);
  static constexpr const char *streams[] = {"cuStreamCreate", "cuStreamSynchronize"};
  EXPECT_EQ(testing::refuse_each(streams, run), 2u);
}

TEST_F(cccl_resource, a_forked_child_gets_an_exception) {
  const stream s = make_stream();
  memory_resource r(heap());
  void *const block = allocate(r, s, 1000);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = 1;
    try {
      (void)allocate(r, s, 1000);
    } catch (const cuda::cuda_error &) {
      deallocate(r, s, block, 1000);  // throws nothing
      status = 0;
    } catch (...) {
      status = 2;
    }
    _exit(status);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  deallocate(r, s, block, 1000);
}

#if CCCL_VERSION >= 3002000
TEST_F(cccl_resource, any_resource_owns_it_asks_it_and_passes_its_exceptions_on) {
  const stream s = make_stream();
  const auto h = heap(8 * page());
  std::weak_ptr<caching_allocator> watched = h;
  {
    cuda::mr::any_resource<device_accessible> any{memory_resource(h)};
    auto copy = any;
    EXPECT_TRUE(any == copy);
    EXPECT_FALSE((any == cuda::mr::any_resource<device_accessible>{memory_resource(heap())}));
    EXPECT_TRUE(try_get_property(any, device_accessible{}));
    EXPECT_FALSE(try_get_property(any, cuda::mr::host_accessible{}));
    EXPECT_THROW((void)allocate(any, s, 9 * page()), cuda::cuda_error);
    EXPECT_THROW((void)allocate(any, s, 1, 3), std::invalid_argument);
    void *const block = allocate(any, s, page());
    deallocate(copy, s, block, page());
    // What RMM 26 takes, by value and by reference.
    cuda::mr::resource_ref<device_accessible> ref{any};
    deallocate_sync(ref, allocate_sync(ref, page()), page());
  }
  EXPECT_EQ(live(*h), 0u);
  EXPECT_EQ(h.use_count(), 1);
}

TEST_F(cccl_resource, any_resource_outlives_the_owner) {
  const stream s = make_stream();
  cuda::mr::any_resource<device_accessible> any{memory_resource(heap())};
  void *const block = allocate(any, s, 1_MiB);
  testing::put(dev(), address(block), testing::pattern(1_MiB, 3));
  EXPECT_TRUE(testing::holds(dev(), address(block), 1_MiB, 3));
  deallocate(any, s, block, 1_MiB);
}
#endif

}  // namespace
}  // namespace stillmap

#else

TEST(cccl_resource, needs_the_headers_of_cccl) {
  GTEST_SKIP() << "needs the headers of CCCL (nvidia-cuda-cccl), which are not there";
}

#endif
