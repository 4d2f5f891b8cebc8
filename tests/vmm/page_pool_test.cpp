#include "stillmap/vmm/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <set>
#include <thread>

#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/physical_memory.h"
#include "tests/support/pool_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using testing::fails_with;
using testing::hold;
using testing::outcome;
using testing::release;

class page_pool_test : public testing::pool_test {};

TEST_F(page_pool_test, makes_pages_and_keeps_them_warm) {
  const auto pool = make_pool();
  EXPECT_EQ(pool->page_bytes(), page());
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(3, pages));
  ASSERT_EQ(pages.size(), 3u);
  std::set<std::uint64_t> ids;
  for (const page_ptr &p : pages) {
    ids.insert(p->id());
    EXPECT_EQ(p->bytes(), page());
    EXPECT_EQ(p.use_count(), 1u);
    EXPECT_EQ(page_ptr().use_count(), 0u);
    EXPECT_FALSE(p->imported());
    EXPECT_EQ(p->properties(), pool->properties());
  }
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(pool->stats().pages_created, 3u);
  EXPECT_EQ(pool->stats().created.bytes(), 3 * page());
  pages.clear();
  EXPECT_EQ(free_pages(*pool), 3u);
  const driver_counts before = counts();
  ASSERT_TRUE(pool->acquire(3, pages));
  EXPECT_EQ((counts() - before).total(), 0u) << "warm pages cost nothing";
  EXPECT_EQ(pool->stats().pages_reused, 3u);
  for (const page_ptr &p : pages) EXPECT_TRUE(ids.contains(p->id()));
  EXPECT_EQ(pool->stats().peak.bytes(), 3 * page());
}

// Regression: they came back in the opposite order, and hostcuda mapped each by itself.
TEST_F(page_pool_test, pages_of_a_buffer_come_back_in_their_order) {
  const auto pool = make_pool();
  ASSERT_TRUE(pool->prepare(20 * page()));
  const auto order_in_a_buffer = [&] {
    buffer_options options;
    options.pools = {pool};
    growable_buffer b = make(options);
    EXPECT_TRUE(b.resize(20 * page()));
    std::vector<std::uint64_t> ids;
    for (const auto &m : dev().space().mappings(b.range())) ids.push_back(m.backing->id());
    return ids;
  };
  const auto first = order_in_a_buffer();
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  EXPECT_EQ(order_in_a_buffer(), first);
}

TEST_F(page_pool_test, acquiring_appends_and_none_is_none) {
  const auto pool = make_pool();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(1, pages));
  ASSERT_TRUE(pool->acquire(0, pages));
  ASSERT_TRUE(pool->acquire(1, pages));
  EXPECT_EQ(pages.size(), 2u);
}

TEST_F(page_pool_test, keeps_free_only_up_to_its_watermark) {
  page_pool_options options;
  options.keep_free = 2 * page();
  const auto pool = make_pool(options);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(5, pages));
  pages.clear();
  EXPECT_EQ(free_pages(*pool), 2u);
  EXPECT_EQ(pool->stats().pages_released, 3u);
  if (on_hostcuda()) {
    EXPECT_EQ(testing::hostcuda_control::counters().live_handles, 2u);
  }
}

TEST_F(page_pool_test, trims_prepares_and_says_how_much) {
  const auto pool = make_pool();
  ASSERT_TRUE(pool->prepare(4 * page() - 1));
  EXPECT_EQ(free_pages(*pool), 4u);
  ASSERT_TRUE(pool->prepare(page()));
  EXPECT_EQ(free_pages(*pool), 4u) << "there are enough already";
  EXPECT_EQ(pool->trim(2 * page() + 1)->bytes(), 2 * page());
  EXPECT_EQ(free_pages(*pool), 2u);
  EXPECT_EQ(pool->trim(2 * page())->bytes(), 0u);
  EXPECT_EQ(pool->trim()->bytes(), 2 * page());
  EXPECT_EQ(pool->stats().created.bytes(), 0u);
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
}

TEST_F(page_pool_test, keeps_pages_ready_in_the_background) {
  const auto pool = make_pool();
  pool->keep_ready(3 * page());
  const auto until = [&](std::uint64_t n) {
    while (free_pages(*pool) < n) {
      std::promise<void> ran;
      ASSERT_TRUE(pool->in_background(this, [&] { ran.set_value(); }));
      ran.get_future().wait();
    }
  };
  until(3);
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  until(3);
  EXPECT_EQ(pool->stats().created.bytes(), 5 * page());
  pool->keep_ready(0);
}

TEST_F(page_pool_test, keeping_none_ready_waits_for_the_page_being_created) {
  STILLMAP_NEEDS_HOSTCUDA();
  const auto pool = make_pool();
  std::promise<void> creating;
  std::atomic<bool> created = false;
  std::function<void()> slowly = [&] {
    creating.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    created = true;
  };
  testing::hostcuda_control::before("cuMemCreate", 1, slowly);
  pool->keep_ready(page());
  creating.get_future().wait();
  pool->keep_ready(0);
  EXPECT_TRUE(created);
  EXPECT_EQ(free_pages(*pool), 1u);
}

TEST_F(page_pool_test, background_jobs_run_in_order_and_can_be_forgotten) {
  const auto pool = make_pool();
  std::promise<void> go;
  std::promise<void> started;
  std::vector<int> ran;
  int owner = 0;
  ASSERT_TRUE(pool->in_background(this, [&] {
    started.set_value();
    go.get_future().wait();
    ran.push_back(1);
  }));
  started.get_future().wait();
  ASSERT_TRUE(pool->in_background(&owner, [&] { ran.push_back(2); }));
  pool->cancel_background(&owner);
  go.set_value();
  pool->cancel_background(this);
  EXPECT_EQ(ran, std::vector<int>{1});
}

TEST_F(page_pool_test, a_page_dropped_under_a_fence_waits_for_it) {
  const auto pool = make_pool();
  const stream s = make_stream();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  hold(s.get());
  const fence busy = after(s);
  pages[0].retire(busy);
  EXPECT_FALSE(pages[0]);
  pages[1].retire(fence());
  pages.clear();
  EXPECT_EQ(pool->stats().waiting.bytes(), page());
  EXPECT_EQ(free_pages(*pool), 2u);
  ASSERT_TRUE(pool->acquire(2, pages)) << "the ready one, and a new one";
  EXPECT_EQ(pool->stats().pages_created, 3u);
  EXPECT_EQ(pool->trim()->bytes(), 0u) << "pages behind a fence stay";
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  ASSERT_TRUE(pool->acquire(1, pages));
  EXPECT_EQ(pool->stats().pages_created, 3u);
  EXPECT_EQ(pool->stats().host_waits, 0u);
}

// Regression: only an acquire() noticed that the work was over.
TEST_F(page_pool_test, trims_pages_that_no_work_uses_any_more) {
  page_pool_options few;
  few.keep_free = 2 * page();
  const auto pool = make_pool(few);
  const stream s = make_stream();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(2, pages));
  buffer_options options;
  options.pools = {pool};
  growable_buffer b = make(options);
  ASSERT_TRUE(b.resize(3 * page()));
  ASSERT_TRUE(b.resize(0));
  hold(s.get());
  for (page_ptr &p : pages) p.retire(after(s));
  ASSERT_TRUE(b.shrink_to_fit(after(s)));
  EXPECT_EQ(pool->trim()->bytes(), 0u) << "work may still use them";
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(pool->trim(page())->bytes(), 4 * page());
  EXPECT_EQ(pool->trim()->bytes(), page());
  EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
}

TEST_F(page_pool_test, retiring_one_of_two_references_fences_the_page_for_later) {
  const auto pool = make_pool();
  const stream s = make_stream();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(1, pages));
  page_ptr second = pages[0];
  EXPECT_EQ(second.use_count(), 2u);
  hold(s.get());
  pages[0].retire(after(s));
  pages.clear();
  EXPECT_EQ(second.use_count(), 1u);
  second = page_ptr();
  EXPECT_EQ(pool->stats().waiting.bytes(), page());
  release(s.get());
}

TEST_F(page_pool_test, adopts_memory_made_by_hand) {
  const auto pool = make_pool();
  auto memory = physical_memory::create(dev(), page());
  ASSERT_TRUE(memory);
  const physical_handle handle = memory->handle();
  auto adopted = pool->adopt(std::move(*memory));
  ASSERT_TRUE(adopted) << adopted.error().message();
  EXPECT_EQ((*adopted)->handle(), handle);
  EXPECT_EQ(pool->stats().created.bytes(), page());
  EXPECT_EQ(pool->stats().peak.bytes(), page());
  EXPECT_EQ(dev().space().stats().physical.bytes(), page());
  *adopted = page_ptr();
  EXPECT_EQ(free_pages(*pool), 1u) << "as good as one of its own";
}

TEST_F(page_pool_test, adopted_memory_counts_towards_the_limit) {
  page_pool_options options;
  options.limit = 2 * page();
  const auto pool = make_pool(options);
  auto memory = physical_memory::create(dev(), page());
  ASSERT_TRUE(memory);
  const auto adopted = pool->adopt(std::move(*memory));
  ASSERT_TRUE(adopted) << adopted.error().message();
  std::vector<page_ptr> pages;
  ASSERT_TRUE(pool->acquire(1, pages));
  EXPECT_TRUE(
      fails_with(pool->acquire(1, pages), errc::out_of_memory, "page_pool::acquire", page(), 0));
}

TEST_F(page_pool_test, adopted_memory_that_others_hold_is_not_pooled) {
  const auto pool = make_pool();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(page()));
  auto retained = physical_memory::retain(dev(), b.address());
  ASSERT_TRUE(retained) << retained.error().message();
  EXPECT_TRUE(retained->shared());
  auto adopted = pool->adopt(std::move(*retained));
  ASSERT_TRUE(adopted);
  *adopted = page_ptr();
  EXPECT_EQ(free_pages(*pool), 0u) << "b has it still";
}

TEST_F(page_pool_test, adopt_refuses_what_it_cannot_have) {
  const auto pool = make_pool();
  auto big = physical_memory::create(dev(), 2 * page());
  ASSERT_TRUE(big);
  const char *op = "page_pool::adopt";
  EXPECT_TRUE(fails_with(outcome(pool->adopt(std::move(*big))), errc::invalid_argument, op,
                         2 * page(), page()));
  auto one = physical_memory::create(dev(), page());
  ASSERT_TRUE(one);
  physical_memory moved = std::move(*one);
  EXPECT_TRUE(fails_with(outcome(pool->adopt(std::move(*one))),  // NOLINT: moved from, on purpose
                         errc::invalid_argument, op));
  if (*device::count() > 1) {
    const device second = open_device(1);
    auto other = physical_memory::create(second, page());
    ASSERT_TRUE(other);
    EXPECT_TRUE(
        fails_with(outcome(pool->adopt(std::move(*other))), errc::invalid_argument, op, 1, 0));
  }
}

TEST_F(page_pool_test, pages_of_several_granules) {
  page_pool_options options;
  options.page_bytes = 4 * page();
  const auto pool = make_pool(options);
  buffer_options buffer;
  buffer.pools = {pool};
  buffer.reserve_bytes = 16 * page();
  growable_buffer b = make(buffer);
  EXPECT_EQ(b.page_bytes(), 4 * page());
  const driver_counts before = counts();
  ASSERT_TRUE(b.resize(5 * page()));
  EXPECT_EQ((counts() - before)[driver_call::MemMap], 2u);
  EXPECT_EQ(b.capacity(), 8 * page());
  testing::put(dev(), b.address(), testing::pattern(8 * page(), 3));
  EXPECT_TRUE(testing::holds(dev(), b.address(), 8 * page(), 3));
  options.page_bytes = page() + 4096;
  EXPECT_TRUE(fails_with(outcome(page_pool::create(dev(), options)), errc::invalid_argument,
                         "page_pool::create", page() + 4096, page()));
  buffer.pools = {pool, dev().pool()};
  EXPECT_TRUE(fails_with(outcome(growable_buffer::create(dev(), buffer)), errc::invalid_argument,
                         "growable_buffer::create", page(), 4 * page()));
}

TEST_F(page_pool_test, a_page_keeps_its_pool_and_a_pool_its_device) {
  page_ptr kept;
  {
    const auto pool = make_pool();
    std::vector<page_ptr> pages;
    ASSERT_TRUE(pool->acquire(1, pages));
    kept = pages[0];
  }
  close_device();
  EXPECT_EQ(kept->bytes(), kept->bytes());
  if (on_hostcuda()) {
    EXPECT_EQ(testing::hostcuda_control::counters().live_handles, 1u);
  }
  kept = page_ptr();
  EXPECT_EQ(leftovers(), "");
}

TEST_F(page_pool_test, a_pool_that_dies_undoes_what_retires) {
  const stream s = make_stream();
  {
    buffer_options options;
    options.pools = {make_pool()};
    options.reserve_bytes = 8 * page();
    growable_buffer b = make(options);
    ASSERT_TRUE(b.resize(2 * page()));
    const fence f = after(s);
    ASSERT_TRUE(b.close(f));
  }
  EXPECT_EQ(dev().space().stats().live_mappings, 0u);
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
}

TEST_F(page_pool_test, a_page_outlives_the_buffer_it_was_in) {
  page_ptr kept;
  {
    growable_buffer b = make();
    ASSERT_TRUE(b.resize(page()));
    kept = dev().space().mappings(b.range()).at(0).backing;
    EXPECT_EQ(kept.use_count(), 2u);
  }
  EXPECT_EQ(kept.use_count(), 1u);
  EXPECT_EQ(free_pages(*dev().pool()), 0u);
  kept = page_ptr();
  EXPECT_EQ(free_pages(*dev().pool()), 1u);
}

TEST_F(page_pool_test, refuses_what_the_device_cannot) {
  page_pool_options options;
  options.exportable = handle_type::fabric;
  if (!dev().capabilities().fabric_export) {
    EXPECT_TRUE(fails_with(outcome(page_pool::create(dev(), options)), errc::not_supported,
                           "page_pool::create"));
  }
  options = {};
  options.rdma = true;
  if (!dev().capabilities().rdma) {
    EXPECT_TRUE(fails_with(outcome(page_pool::create(dev(), options)), errc::not_supported,
                           "page_pool::create"));
  } else {
    EXPECT_TRUE(page_pool::create(dev(), options));
  }
}

TEST_F(page_pool_test, refuses_more_than_the_device_has_before_it_creates_a_page) {
  const auto pool = make_pool();
  EXPECT_EQ(pool->location_bytes(), dev().total_memory().bytes());
  const std::size_t n = dev().total_memory().bytes() / page() + 1;
  std::vector<page_ptr> pages;
  const driver_counts before = counts();
  EXPECT_TRUE(fails_with(pool->acquire(n, pages), errc::out_of_memory, "page_pool::acquire",
                         n * page(), dev().total_memory().bytes()));
  EXPECT_TRUE(fails_with(pool->prepare(n * page()), errc::out_of_memory, "page_pool::prepare"));
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_TRUE(pages.empty());
}

// Pages are counted once for all of an acquire: also where it fails in the middle, beside others.
TEST_F(page_pool_test, counts_agree_when_threads_acquire_under_a_limit_and_calls_fail) {
  STILLMAP_NEEDS_HOSTCUDA();
  page_pool_options options;
  options.limit = 12 * page();
  options.keep_free = 3 * page();
  const auto pool = make_pool(options);
  const std::size_t before = dev().space().stats().physical.bytes();
  std::atomic<bool> stop{false};
  std::thread failing([&] {
    while (!stop) {
      testing::hostcuda_control::fail("cuMemCreate", 3, CUDA_ERROR_OUT_OF_MEMORY);
      std::this_thread::yield();
    }
  });
  std::atomic<int> served{0};
  const auto work = [&](std::size_t first) {
    for (std::size_t i = 0; i < 400; ++i) {
      std::vector<page_ptr> pages;
      const status s = pool->acquire(1 + (first + i) % 7, pages);
      if (s) ++served;
      EXPECT_EQ(pages.size(), s ? 1 + (first + i) % 7 : 0);
      EXPECT_LE(pool->stats().created.bytes(), options.limit);
      if (i % 16 == 0) {
        EXPECT_TRUE(pool->trim(0));
      }
    }
  };
  std::vector<std::thread> threads;
  for (const std::size_t t : {0u, 2u, 4u}) threads.emplace_back(work, t);
  for (std::thread &t : threads) t.join();
  stop = true;
  failing.join();
  testing::hostcuda_control::stop_failing("cuMemCreate");
  EXPECT_GT(served, 0);
  ASSERT_TRUE(pool->trim(0));
  const page_pool_stats now = pool->stats();
  EXPECT_EQ(now.created.bytes(), 0u);
  EXPECT_EQ(now.pages_created, now.pages_released);
  EXPECT_LE(now.peak.bytes(), options.limit);
  EXPECT_EQ(dev().space().stats().physical.bytes(), before);
  std::vector<page_ptr> all;
  EXPECT_TRUE(pool->acquire(12, all)) << "nothing of the limit is lost";
  EXPECT_FALSE(pool->acquire(1, all));
}

}  // namespace
}  // namespace stillmap
