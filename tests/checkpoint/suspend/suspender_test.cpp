// Memory suspended by tag and resumed: addresses, contents, sharing, and failures.
#include "stillmap/checkpoint/suspend/suspender.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "tests/support/buffer_test.h"
#include "tests/support/captured_graph.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/stream_gate.h"

namespace stillmap::checkpoint {
namespace {

using namespace literals;
using stillmap::testing::captured_graph;
using stillmap::testing::fails_with;
using stillmap::testing::get;
using stillmap::testing::hold;
using stillmap::testing::holds;
using stillmap::testing::outcome;
using stillmap::testing::pattern;
using stillmap::testing::put;
using stillmap::testing::release;

class suspender_test : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    create_suspender();
  }
  void TearDown() override {
    suspender_.reset();
    buffer_test::TearDown();
  }
  void create_suspender(suspender_options options = {}) {
    suspender_.reset();
    auto made = suspender::create(dev(), options);
    ASSERT_TRUE(made) << made.error().message();
    suspender_ = std::move(*made);
  }
  void destroy_suspender() { suspender_.reset(); }
  suspender &tested() { return *suspender_; }

  std::uint64_t device_free() const { return dev().memory()->free.bytes(); }
  address_space_stats stats() const { return dev().space().stats(); }

 private:
  std::unique_ptr<suspender> suspender_;
};

TEST_F(suspender_test, contents_come_back_at_the_same_addresses) {
  growable_buffer weights = filled(5, "weights", 1);
  growable_buffer more = filled(3, "weights", 2);
  growable_buffer cache = filled(2, "cache", 3);
  ASSERT_TRUE(dev().pool()->trim());
  const std::uint64_t free_before = device_free();
  for (const backing_store store : {backing_store::pinned_host, backing_store::file}) {
    suspend_options options;
    options.store = store;
    const auto suspended = tested().suspend("weights", options);
    ASSERT_TRUE(suspended) << suspended.error().message();
    EXPECT_EQ(suspended->places, 8u);
    EXPECT_EQ(suspended->bytes, 8 * page());
    EXPECT_EQ(suspended->released.bytes(), 8 * page());
    EXPECT_EQ(device_free(), free_before + 8 * page());
    EXPECT_EQ(stats().suspended_bytes, 8 * page());
    ASSERT_EQ(tested().suspended().size(), 1u);
    EXPECT_EQ(tested().suspended()[0].tag, "weights");
    EXPECT_TRUE(holds(dev(), cache.address(), 2 * page(), 3));

    const auto resumed = tested().resume("weights");
    ASSERT_TRUE(resumed) << resumed.error().message();
    EXPECT_EQ(resumed->bytes, 8 * page());
    EXPECT_TRUE(tested().suspended().empty());
    EXPECT_EQ(device_free(), free_before);
    EXPECT_TRUE(holds(dev(), weights.address(), 5 * page(), 1));
    EXPECT_TRUE(holds(dev(), more.address(), 3 * page(), 2));
  }
}

TEST_F(suspender_test, discarded_contents_come_back_as_memory) {
  growable_buffer b = filled(4, "scratch", 1);
  suspend_options options;
  options.store = backing_store::discard;
  const driver_counts before = counts();
  ASSERT_TRUE(tested().suspend("scratch", options));
  ASSERT_TRUE(tested().resume("scratch"));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent.bytes_to_host, 0u);
  EXPECT_EQ(spent.bytes_to_device, 0u);
  put(dev(), b.address(), pattern(4 * page(), 2));
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 2));
}

// Pages with several addresses are saved once, and are shared again afterwards.
TEST_F(suspender_test, aliases_and_forks_are_restored) {
  growable_buffer ring = filled(3, "shared", 1);
  auto twice = ring.alias(0, 3 * page(), 2);
  ASSERT_TRUE(twice) << twice.error().message();
  growable_buffer parent = filled(2, "shared", 2);
  auto child = parent.fork();
  ASSERT_TRUE(child) << child.error().message();
  const auto suspended = tested().suspend("shared");
  ASSERT_TRUE(suspended) << suspended.error().message();
  EXPECT_EQ(suspended->places, 3u + 6u + 2u + 2u);
  EXPECT_EQ(suspended->bytes, 5 * page());
  ASSERT_TRUE(tested().resume("shared"));

  EXPECT_TRUE(holds(dev(), ring.address(), 3 * page(), 1));
  EXPECT_TRUE(holds(dev(), twice->address() + 3 * page(), 3 * page(), 1));
  put(dev(), ring.address() + page(), pattern(64, 9));
  EXPECT_TRUE(holds(dev(), twice->address() + page(), 64, 9));
  EXPECT_TRUE(holds(dev(), twice->address() + 4 * page(), 64, 9));

  EXPECT_TRUE(holds(dev(), parent.address(), 2 * page(), 2));
  ASSERT_TRUE(child->make_writable(0, page(), {}));
  put(dev(), child->address(), pattern(page(), 5));
  EXPECT_TRUE(holds(dev(), parent.address(), 2 * page(), 2));
  EXPECT_TRUE(holds(dev(), child->address(), page(), 5));
  EXPECT_EQ(stats().live_blocks, 4u);
}

TEST_F(suspender_test, blocks_of_an_allocator_keep_their_addresses) {
  for (const std::size_t scale : {1, 4}) {
    SCOPED_TRACE(scale);
    caching_allocator_options options;
    options.tag = "heap";
    options.page_bytes = scale * page();
    auto heap = caching_allocator::create(dev(), options);
    ASSERT_TRUE(heap);
    const stream s = make_stream();
    std::vector<void *> blocks;
    for (unsigned i = 0; i < 40; ++i) {
      const auto got = (*heap)->allocate(1000 + 300_KiB * i, s);
      ASSERT_TRUE(got);
      blocks.push_back(*got);
      put(dev(), device_address(reinterpret_cast<std::uintptr_t>(*got)), pattern(1000, i));
    }
    ASSERT_TRUE((*heap)->empty_cache());
    const std::uint64_t free_before = device_free();
    const auto suspended = tested().suspend("heap");
    ASSERT_TRUE(suspended) << suspended.error().message();
    EXPECT_EQ(suspended->released.bytes(), suspended->bytes);
    EXPECT_EQ(device_free(), free_before + suspended->bytes);
    // Freeing needs no pages, so it works while the heap is suspended.
    ASSERT_TRUE((*heap)->free(blocks[0]));
    ASSERT_TRUE(tested().resume("heap"));
    for (unsigned i = 1; i < 40; ++i) {
      const device_address at(reinterpret_cast<std::uintptr_t>(blocks[i]));
      EXPECT_TRUE(holds(dev(), at, 1000, i));
      EXPECT_TRUE((*heap)->free(blocks[i]));
    }
    const auto again = (*heap)->allocate(8 * page(), s);
    ASSERT_TRUE(again);
    EXPECT_TRUE((*heap)->free(*again));
  }
}

// Its free memory has no pages.
TEST_F(suspender_test, a_suspended_allocator_refuses_requests) {
  caching_allocator_options options;
  options.tag = "heap";
  auto heap = caching_allocator::create(dev(), options);
  auto other = caching_allocator::create(dev());
  ASSERT_TRUE(heap && other);
  const stream s = make_stream(), second = make_stream();
  const auto small = (*heap)->allocate(1000, s), large = (*heap)->allocate(4 * page(), s);
  ASSERT_TRUE(small && large && (*heap)->allocate(1000, second));
  ASSERT_TRUE((*heap)->free(*large));
  ASSERT_TRUE((*other)->allocate(1000, s));
  ASSERT_TRUE(tested().suspend("heap"));
  for (const std::size_t bytes : {std::size_t{1000}, 4 * page(), 40 * page()}) {
    for (const stream *on : {&s, &second}) {
      const auto refused = (*heap)->allocate(bytes, *on);
      ASSERT_TRUE(fails_with(outcome(refused), errc::busy, "caching_allocator::allocate"));
      EXPECT_EQ(refused.error().detail().subject, "tag heap");
    }
  }
  EXPECT_TRUE((*other)->allocate(1000, s)) << "another tag";
  const auto nothing = (*heap)->allocate(0, s);
  EXPECT_TRUE(nothing && *nothing == nullptr);
  // What is suspended is not the allocator's to give away.
  const auto report = (*heap)->empty_cache();
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->released, 0u);
  EXPECT_EQ(report->capturing, 0u) << "no stream captures";
  EXPECT_GT(report->kept, 0u);
  EXPECT_TRUE(
      fails_with(outcome((*heap)->allocate(1000, s)), errc::busy, "caching_allocator::allocate"));
  // A forked child must not wait for locks that another thread may have held at the fork.
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const auto refused = (*heap)->allocate(1000, s);
    _exit(!refused && refused.error().is(errc::not_supported) ? 0 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  EXPECT_TRUE((*heap)->free(*small));
  ASSERT_TRUE(tested().resume("heap"));
  for (const std::size_t bytes : {std::size_t{1000}, 4 * page(), 40 * page()}) {
    const auto again = (*heap)->allocate(bytes, s);
    ASSERT_TRUE(again) << again.error().message();
    put(dev(), device_address(reinterpret_cast<std::uintptr_t>(*again)), pattern(bytes, 1));
  }
  // What is forgotten does not come back, and the allocator can still end.
  ASSERT_TRUE(tested().suspend("heap"));
  ASSERT_TRUE(tested().forget("heap"));
  EXPECT_TRUE(
      fails_with(outcome((*heap)->allocate(1000, s)), errc::busy, "caching_allocator::allocate"));
  heap->reset();
}

TEST_F(suspender_test, invalid_calls_fail_and_change_nothing) {
  growable_buffer b = filled(2, "here", 1);
  EXPECT_TRUE(fails_with(outcome(tested().suspend("nowhere")), errc::invalid_argument,
                         "suspender::suspend"));
  EXPECT_TRUE(
      fails_with(outcome(tested().resume("here")), errc::invalid_argument, "suspender::resume"));
  EXPECT_TRUE(fails_with(tested().forget("here"), errc::invalid_argument, "suspender::forget"));
  suspender_options none;
  none.streams = 0;
  EXPECT_TRUE(fails_with(outcome(suspender::create(dev(), none)), errc::invalid_argument,
                         "suspender::create"));
  ASSERT_TRUE(tested().suspend("here"));
  EXPECT_TRUE(fails_with(outcome(tested().suspend("here")), errc::busy, "suspender::suspend"));
  auto other = suspender::create(dev());
  ASSERT_TRUE(other);
  EXPECT_TRUE(fails_with(outcome((*other)->suspend("here")), errc::busy, "suspender::suspend"));
  ASSERT_TRUE(tested().resume("here"));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

TEST_F(suspender_test, pages_used_outside_of_the_tag_are_refused) {
  std::vector<page_ptr> held;
  ASSERT_TRUE(dev().pool()->acquire(1, held));
  reservation_options options;
  options.tag = "pages";
  const auto place = reservation::create(dev(), 2 * page(), options);
  ASSERT_TRUE(place);
  const auto mapped = mapping::create(*place, page(), held[0]);
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(fails_with(outcome(tested().suspend("pages")), errc::busy, "suspender::suspend",
                         (place->range().begin + page()).value(), 0));
  EXPECT_EQ(stats().suspended_bytes, 0u);
}

TEST_F(suspender_test, a_missing_directory_is_a_system_error) {
  growable_buffer b = filled(2, "here", 1);
  suspend_options options;
  options.store = backing_store::file;
  options.directory = "/nonexistent/of/this/test";
  const auto got = tested().suspend("here", options);
  ASSERT_FALSE(got);
  EXPECT_TRUE(got.error().code == std::errc::no_such_file_or_directory) << got.error().message();
  EXPECT_EQ(got.error().detail().subject, options.directory);
  EXPECT_EQ(got.error().limit, 0u) << "there is none";
  EXPECT_EQ(got.error().value, 2 * page());
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

// Failures leave the tag suspended until there is free memory.
// Regression: commit() succeeded and mapped nothing, since the pages counted as committed.
TEST_F(suspender_test, forgotten_memory_is_mapped_anew_by_commit) {
  growable_buffer b = filled(4, "task", 1);
  growable_buffer other = filled(1, "other", 2);
  ASSERT_TRUE(tested().suspend("task"));
  EXPECT_TRUE(b.commit(0, page())) << "what is suspended stays so";
  EXPECT_EQ(stats().suspended_bytes, 4 * page());
  ASSERT_TRUE(tested().forget("task"));
  EXPECT_EQ(stats().suspended_bytes, 0u);
  EXPECT_EQ(stats().released_bytes, 4 * page());
  EXPECT_TRUE(fails_with(outcome(tested().suspend("task")), errc::busy, "suspender::suspend"));
  const auto alias = b.alias(0, page(), 2);
  ASSERT_FALSE(alias);
  EXPECT_NE(alias.error().message().find("commit"), std::string::npos) << alias.error().message();

  const std::uint64_t generation = b.generation();
  ASSERT_TRUE(b.commit(page(), 2 * page()));
  EXPECT_GT(b.generation(), generation);
  EXPECT_EQ(stats().released_bytes, 2 * page());
  EXPECT_EQ(b.mapped_bytes(), 4 * page());
  put(dev(), b.address() + page(), pattern(2 * page(), 5));
  EXPECT_TRUE(holds(dev(), b.address() + page(), 2 * page(), 5));
  ASSERT_TRUE(b.commit(0, 4 * page()));
  EXPECT_EQ(stats().released_bytes, 0u);
  EXPECT_TRUE(holds(dev(), b.address() + page(), 2 * page(), 5)) << "mapped already";
  put(dev(), b.address(), pattern(4 * page(), 6));
  ASSERT_TRUE(tested().suspend("task"));
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 6));
  EXPECT_TRUE(holds(dev(), other.address(), page(), 2));
}

// Regression: it advised to resume the tag, which cannot be resumed.
TEST_F(suspender_test, an_allocator_whose_memory_was_forgotten_says_so) {
  caching_allocator_options options;
  options.tag = "heap";
  auto heap = caching_allocator::create(dev(), options);
  ASSERT_TRUE(heap);
  const stream s = make_stream();
  const auto block = (*heap)->allocate(page(), s);
  ASSERT_TRUE(block);
  ASSERT_TRUE(tested().suspend("heap"));
  const auto suspended = (*heap)->allocate(page(), s);
  ASSERT_FALSE(suspended);
  EXPECT_NE(suspended.error().message().find("resume"), std::string::npos);
  ASSERT_TRUE(tested().forget("heap"));
  const auto forgotten = (*heap)->allocate(page(), s);
  ASSERT_FALSE(forgotten);
  EXPECT_EQ(forgotten.error().message().find("resume"), std::string::npos)
      << forgotten.error().message();
  EXPECT_TRUE((*heap)->free(*block));
}

TEST_F(suspender_test, committing_forgotten_memory_without_room_changes_nothing) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = filled(4, "task", 1);
  ASSERT_TRUE(tested().suspend("task"));
  ASSERT_TRUE(tested().forget("task"));
  leave_free(2);
  EXPECT_TRUE(b.commit(0, 4 * page()).error().is(errc::out_of_memory));
  EXPECT_EQ(stats().released_bytes, 4 * page());
  EXPECT_EQ(stats().mapped_bytes, 0u);
  EXPECT_TRUE(b.commit(0, page()));
}

TEST_F(suspender_test, a_device_that_shares_host_memory_demands_another_store) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_ONE_PROFILE_DOES();
  EXPECT_FALSE(dev().capabilities().integrated);
  destroy_suspender();
  restart_as("profile=integrated");
  EXPECT_TRUE(dev().capabilities().integrated);
  create_suspender();
  growable_buffer b = filled(2, "task", 1);
  const driver_counts before = counts();
  const auto refused = tested().suspend("task");
  EXPECT_TRUE(
      fails_with(outcome(refused), errc::not_supported, "suspender::suspend", 2 * page(), 0));
  EXPECT_NE(refused.error().message().find("file"), std::string::npos);
  EXPECT_EQ((counts() - before)[driver_call::MemHostAlloc], 0u);
  suspend_options options;
  options.store = backing_store::file;
  ASSERT_TRUE(tested().suspend("task", options));
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
  options.store = backing_store::discard;
  ASSERT_TRUE(tested().suspend("task", options));
  ASSERT_TRUE(tested().resume("task"));
}

// Regression: the wait for the device invalidated the capture, although nothing was suspended.
TEST_F(suspender_test, a_capture_stays_intact) {
  const stream s = make_stream(), blocking = *stream::create(dev(), false);
  growable_buffer b = filled(2, "task", 1);
  {
    captured_graph graph(dev(), s);
    EXPECT_TRUE(fails_with(outcome(tested().suspend("nothing")), errc::invalid_argument,
                           "suspender::suspend"));
    EXPECT_TRUE(graph.end()) << "no memory has the tag";
  }
  {
    captured_graph graph(dev(), blocking);
    EXPECT_TRUE(fails_with(outcome(tested().suspend("task")), errc::busy, "suspender::suspend"));
    EXPECT_TRUE(graph.end()) << "a capture that can be noticed";
  }
  EXPECT_TRUE(tested().suspended().empty());
  suspend_options options;
  options.idle = fence();
  for (const backing_store store :
       {backing_store::pinned_host, backing_store::file, backing_store::discard}) {
    options.store = store;
    captured_graph graph(dev(), s);
    EXPECT_TRUE(tested().suspend("task", options));
    EXPECT_TRUE(tested().resume("task"));
    EXPECT_TRUE(graph.end()) << "nothing has to be waited for, store " << static_cast<int>(store);
  }
}

// The driver refuses although the host has the memory: the limit of locked memory is named.
TEST_F(suspender_test, a_limit_of_locked_memory_is_named_where_the_driver_refuses) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = filled(2, "task", 1);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64 << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  EXPECT_TRUE(tested().suspend("task")) << "the limit itself stops no driver";
  ASSERT_TRUE(tested().resume("task"));
  stillmap::testing::hostcuda_control::fail("cuMemHostAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto refused = tested().suspend("task");
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_TRUE(fails_with(outcome(refused), errc::out_of_memory, "suspender::suspend", 2 * page(),
                         64 << 10));
  EXPECT_NE(refused.error().message().find("RLIMIT_MEMLOCK"), std::string::npos);
  EXPECT_NE(refused.error().message().find("suspend to a file"), std::string::npos);
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 1));
}

TEST_F(suspender_test, resuming_without_memory_can_be_tried_again) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = filled(6, "task", 1);
  ASSERT_TRUE(tested().suspend("task"));
  {
    leave_free(8);
    growable_buffer other = filled(5, "other", 2);
    for (int i = 0; i < 2; ++i) {
      const auto resumed = tested().resume("task");
      ASSERT_FALSE(resumed);
      EXPECT_TRUE(resumed.error().is(errc::out_of_memory)) << resumed.error().message();
      EXPECT_EQ(stats().suspended_bytes, 6 * page());
      EXPECT_EQ(device_free(), 3 * page());
    }
    EXPECT_TRUE(holds(dev(), other.address(), 5 * page(), 2));
  }
  ASSERT_TRUE(dev().pool()->trim());
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_TRUE(holds(dev(), b.address(), 6 * page(), 1));
}

TEST_F(suspender_test, memory_released_by_its_owner_does_not_come_back) {
  growable_buffer b = filled(6, "task", 1);
  {
    growable_buffer gone = filled(3, "task", 2);
    ASSERT_TRUE(tested().suspend("task"));
  }
  ASSERT_TRUE(b.decommit(page(), 2 * page()));
  ASSERT_TRUE(b.commit(2 * page(), page()));
  put(dev(), b.address() + 2 * page(), pattern(page(), 7));
  const auto resumed = tested().resume("task");
  ASSERT_TRUE(resumed) << resumed.error().message();
  EXPECT_EQ(resumed->places, 4u);
  const std::vector<unsigned char> whole = pattern(6 * page(), 1);
  const auto now = get(dev(), b.address() + 3 * page(), 3 * page());
  EXPECT_TRUE(std::equal(now.begin(), now.end(), whole.begin() + static_cast<long>(3 * page())));
  EXPECT_TRUE(holds(dev(), b.address(), page(), 1));
  EXPECT_TRUE(holds(dev(), b.address() + 2 * page(), page(), 7));
  EXPECT_FALSE(b.committed(page(), 1));
}

TEST_F(suspender_test, suspend_waits_for_the_idle_fence) {
  growable_buffer b = filled(2, "task", 1);
  const stream s = make_stream();
  hold(s.get());
  {
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(driver().set_bytes_async(b.address(), 42, 2 * page(), s.get()));
  }
  suspend_options options;
  options.idle = after(s);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    release(s.get());
  });
  const auto suspended = tested().suspend("task", options);
  later.join();
  ASSERT_TRUE(suspended) << suspended.error().message();
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_EQ(get(dev(), b.address(), 2 * page()), std::vector<unsigned char>(2 * page(), 42));
}

TEST_F(suspender_test, pinned_memory_is_freed_or_kept_as_configured) {
  growable_buffer b = filled(4, "task", 1);
  ASSERT_TRUE(tested().suspend("task"));
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_EQ(tested().pinned_kept(), 0u);

  suspender_options options;
  options.keep_pinned = 1_GiB;
  create_suspender(options);
  ASSERT_TRUE(tested().suspend("task"));
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_EQ(tested().pinned_kept(), 4 * page());
  const driver_counts before = counts();
  ASSERT_TRUE(tested().suspend("task"));
  EXPECT_EQ((counts() - before)[driver_call::MemHostAlloc], 0u);
  EXPECT_EQ(tested().pinned_kept(), 0u);
  ASSERT_TRUE(tested().forget("task"));
  EXPECT_EQ(tested().pinned_kept(), 4 * page());
  tested().drop_pinned();
  EXPECT_EQ(tested().pinned_kept(), 0u);
}

TEST_F(suspender_test, destroying_a_suspender_reports_lost_contents) {
  const std::uint64_t before = background_error_count();
  error reported;
  {
    growable_buffer b = filled(2, "task", 1), more = filled(3, "other", 1);
    ASSERT_TRUE(tested().suspend("task"));
    ASSERT_TRUE(tested().suspend("other"));
    set_error_sink([](const error &e, void *into) noexcept { *static_cast<error *>(into) = e; },
                   &reported);
    create_suspender();
    set_error_sink(nullptr, nullptr);
    EXPECT_EQ(background_error_count(), before + 1);
    EXPECT_TRUE(
        fails_with(tl::unexpected(reported), errc::busy, "suspender::~suspender", 5 * page(), 0));
    EXPECT_EQ(stats().suspended_bytes, 0u);
    EXPECT_EQ(stats().released_bytes, 5 * page());
  }
  EXPECT_EQ(stats().released_bytes, 0u);
  expect_unreturnable();
}

// One unmap and one set-access a run, one map and one create a page, copies of 64 MiB.
TEST_F(suspender_test, driver_calls_are_as_documented) {
  growable_buffer b = filled(16, "task", 1);
  ASSERT_TRUE(dev().pool()->trim());
  driver_counts before = counts();
  ASSERT_TRUE(tested().suspend("task"));
  driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemUnmap], 1u);
  EXPECT_EQ(spent[driver_call::MemRelease], 16u);
  EXPECT_EQ(spent[driver_call::MemcpyDtoHAsync], 1u);
  EXPECT_EQ(spent.bytes_to_host, 16 * page());
  before = counts();
  ASSERT_TRUE(tested().resume("task"));
  spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemCreate], 16u);
  EXPECT_EQ(spent[driver_call::MemMap], 16u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 1u);
  EXPECT_EQ(spent[driver_call::MemcpyHtoDAsync], 1u);
  EXPECT_EQ(spent.bytes_to_device, 16 * page());
}

// The pages are unmapped as they are when suspended: one call a run.
TEST_F(suspender_test, a_resume_that_fails_unmaps_whole_runs) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = filled(16, "task", 1), more = filled(4, "task", 2);
  ASSERT_TRUE(tested().suspend("task"));
  stillmap::testing::hostcuda_control::fail("cuMemcpyHtoDAsync", 1, CUDA_ERROR_UNKNOWN);
  const driver_counts before = counts();
  ASSERT_FALSE(tested().resume("task"));
  EXPECT_EQ((counts() - before)[driver_call::MemUnmap], 2u);
  ASSERT_TRUE(tested().resume("task"));
  EXPECT_TRUE(holds(dev(), b.address(), 16 * page(), 1));
  EXPECT_TRUE(holds(dev(), more.address(), 4 * page(), 2));
}

class suspender_without_vmm : public stillmap::testing::buffer_test {};

TEST_F(suspender_without_vmm, suspend_is_not_supported) {
  if (has_vmm()) GTEST_SKIP() << "this device maps pages";
  auto by = suspender::create(dev());
  ASSERT_TRUE(by);
  EXPECT_TRUE(
      fails_with(outcome((*by)->suspend("task")), errc::not_supported, "suspender::suspend"));
}

}  // namespace
}  // namespace stillmap::checkpoint
