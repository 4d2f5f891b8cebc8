// Pages with more than one address: alias and ring, fork and make_writable, splice.
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "stillmap/vmm/base/units.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::get;
using testing::holds;
using testing::outcome;
using testing::pattern;
using testing::put;

class sharing : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  growable_buffer filled(std::size_t pages, unsigned seed) const {
    buffer_options options;
    options.reserve_bytes = 32_MiB;
    growable_buffer b = make(std::move(options));
    if (pages != 0) {
      EXPECT_TRUE(b.resize(pages * page()));
      put(dev(), b.address(), pattern(pages * page(), seed));
    }
    return b;
  }
  std::uint64_t physical() const { return dev().space().stats().physical.bytes(); }
};

TEST_F(sharing, an_alias_shows_the_same_bytes_both_ways) {
  growable_buffer a = filled(3, 1);
  const std::uint64_t before = physical();
  auto made = a.alias(page(), 2 * page());
  ASSERT_TRUE(made) << made.error().message();
  growable_buffer &b = *made;
  EXPECT_EQ(physical(), before);
  EXPECT_EQ(b.size(), 2 * page());
  EXPECT_EQ(b.capacity(), 2 * page());
  EXPECT_EQ(get(dev(), b.address(), 2 * page()), get(dev(), a.address() + page(), 2 * page()));
  put(dev(), b.address() + page(), pattern(page(), 2));
  EXPECT_TRUE(holds(dev(), a.address() + 2 * page(), page(), 2));
  put(dev(), a.address() + page(), pattern(page(), 3));
  EXPECT_TRUE(holds(dev(), b.address(), page(), 3));
}

TEST_F(sharing, a_ring_continues_at_its_start) {
  growable_buffer a = filled(2, 1);
  auto made = a.alias(0, 2 * page(), 2);
  ASSERT_TRUE(made);
  growable_buffer &ring = *made;
  EXPECT_EQ(ring.size(), 4 * page());
  put(dev(), ring.address() + (2 * page() - 100), pattern(200, 7));
  const auto wanted = pattern(200, 7);
  EXPECT_EQ(get(dev(), ring.address(), 100),
            std::vector<unsigned char>(wanted.begin() + 100, wanted.end()));
  EXPECT_EQ(get(dev(), a.address() + (2 * page() - 100), 100),
            std::vector<unsigned char>(wanted.begin(), wanted.begin() + 100));
}

TEST_F(sharing, aliased_pages_live_as_long_as_either) {
  std::optional<growable_buffer> a = filled(2, 4);
  auto b = a->alias(0, 2 * page());
  ASSERT_TRUE(b);
  a.reset();
  EXPECT_TRUE(holds(dev(), b->address(), 2 * page(), 4));
  EXPECT_EQ(dev().pool()->stats().free.bytes(), 0u);
}

TEST_F(sharing, an_alias_can_grow_by_pages_of_its_own) {
  growable_buffer a = filled(1, 4);
  auto b = a.alias(0, page());
  ASSERT_TRUE(b);
  ASSERT_TRUE(b->resize(3 * page()));
  put(dev(), b->address() + page(), pattern(2 * page(), 5));
  EXPECT_TRUE(holds(dev(), a.address(), page(), 4));
  EXPECT_TRUE(holds(dev(), b->address(), page(), 4));
  EXPECT_TRUE(holds(dev(), b->address() + page(), 2 * page(), 5));
}

TEST_F(sharing, alias_refuses_what_cannot_be) {
  growable_buffer a = filled(2, 1);
  const char *op = "growable_buffer::alias";
  EXPECT_TRUE(fails_with(outcome(a.alias(1, page())), errc::invalid_argument, op, 1, page()));
  EXPECT_TRUE(fails_with(outcome(a.alias(0, 7)), errc::invalid_argument, op, 7, page()));
  EXPECT_TRUE(fails_with(outcome(a.alias(0, 0)), errc::invalid_argument, op));
  EXPECT_TRUE(fails_with(outcome(a.alias(0, page(), 0)), errc::invalid_argument, op));
  for (const std::size_t times : {SIZE_MAX, SIZE_MAX / 2 / page() + 1}) {
    EXPECT_TRUE(
        fails_with(outcome(a.alias(0, page(), times)), errc::invalid_argument, op, times, 0));
  }
  EXPECT_TRUE(
      fails_with(outcome(a.alias(page(), 2 * page())), errc::invalid_argument, op, 2 * page(), 0));
  EXPECT_TRUE(fails_with(outcome(a.alias(a.reserved(), page())), errc::invalid_argument, op,
                         a.reserved() + page(), a.reserved()));
  auto child = a.fork();
  ASSERT_TRUE(child);
  EXPECT_TRUE(fails_with(outcome(a.alias(0, page())), errc::busy, op));
  EXPECT_TRUE(fails_with(outcome(child->alias(0, page())), errc::busy, op));
}

TEST_F(sharing, a_fork_shares_until_one_writes) {
  growable_buffer a = filled(4, 1);
  const std::uint64_t before = physical();
  auto made = a.fork();
  ASSERT_TRUE(made);
  growable_buffer &b = *made;
  EXPECT_EQ(physical(), before);
  for (growable_buffer *each : {&a, &b}) {
    for (const mapping_record &m : dev().space().mappings(each->range())) {
      EXPECT_EQ(m.access.at(0).mode, access_mode::read);
    }
  }
  const stream s = make_stream();
  const device_address at = b.address();
  ASSERT_TRUE(b.make_writable(page() + 5, page(), s));  // touches two pages
  EXPECT_EQ(b.address(), at);
  EXPECT_EQ(b.stats().bytes_copied, 2 * page());
  EXPECT_EQ(physical(), before + 2 * page());
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 1));
  put(dev(), b.address() + page(), pattern(2 * page(), 2));
  EXPECT_TRUE(holds(dev(), a.address(), 4 * page(), 1));
}

TEST_F(sharing, writing_a_forked_page_unprepared_is_refused) {
  growable_buffer a = filled(1, 1);
  auto b = a.fork();
  ASSERT_TRUE(b);
  STILLMAP_NEEDS_HOSTCUDA();
  const context_guard guard(driver(), dev().context());
  const unsigned char byte = 1;
  EXPECT_FALSE(driver().copy_to_device(a.address(), &byte, 1));
  EXPECT_FALSE(driver().copy_to_device(b->address(), &byte, 1));
  EXPECT_TRUE(holds(dev(), a.address(), page(), 1));
}

TEST_F(sharing, a_page_no_longer_shared_is_written_without_a_copy) {
  growable_buffer a = filled(2, 1);
  { ASSERT_TRUE(a.fork()); }
  const stream s = make_stream();
  const driver_counts before = counts();
  ASSERT_TRUE(a.make_writable(0, 2 * page(), s));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent.bytes_on_device, 0u);
  EXPECT_EQ(spent[driver_call::MemMap], 0u);
  EXPECT_EQ(spent[driver_call::MemCreate], 0u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 1u) << "one run";
  put(dev(), a.address(), pattern(2 * page(), 3));
  EXPECT_TRUE(holds(dev(), a.address(), 2 * page(), 3));
}

TEST_F(sharing, prepare_write_of_what_is_writable_calls_nothing) {
  growable_buffer a = filled(2, 1);
  const driver_counts before = counts();
  ASSERT_TRUE(a.make_writable(0, 2 * page(), {}));
  ASSERT_TRUE(a.make_writable(5, 0, {}));
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_TRUE(fails_with(a.make_writable(2 * page(), 1, {}), errc::invalid_argument,
                         "growable_buffer::make_writable"));
  EXPECT_TRUE(fails_with(a.make_writable(SIZE_MAX, 2, {}), errc::invalid_argument,
                         "growable_buffer::make_writable", SIZE_MAX, a.reserved()));
}

TEST_F(sharing, forks_of_forks_stay_apart) {
  growable_buffer a = filled(2, 1);
  auto b = a.fork();
  ASSERT_TRUE(b);
  auto c = b->fork();
  ASSERT_TRUE(c);
  auto d = a.fork();
  ASSERT_TRUE(d);
  const stream s = make_stream();
  unsigned seed = 10;
  for (growable_buffer *each : {&a, &*b, &*c, &*d}) {
    ASSERT_TRUE(each->make_writable(0, each->size(), s));
    put(dev(), each->address(), pattern(2 * page(), seed++));
  }
  seed = 10;
  for (growable_buffer *each : {&a, &*b, &*c, &*d}) {
    EXPECT_TRUE(holds(dev(), each->address(), 2 * page(), seed++));
  }
  EXPECT_EQ(physical(), 8 * page()) << "the last one kept the pages they began with";
}

TEST_F(sharing, a_fork_is_sparse_where_the_original_is) {
  growable_buffer a = filled(0, 0);
  ASSERT_TRUE(a.commit(2 * page(), page()));
  put(dev(), a.address() + 2 * page(), pattern(page(), 8));
  auto b = a.fork();
  ASSERT_TRUE(b);
  EXPECT_FALSE(b->committed(0, 1));
  EXPECT_TRUE(b->committed(2 * page(), page()));
  EXPECT_EQ(b->capacity(), 0u);
  EXPECT_TRUE(holds(dev(), b->address() + 2 * page(), page(), 8));
  growable_buffer nothing = filled(0, 0);
  auto copy = nothing.fork();
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->size(), 0u);
}

TEST_F(sharing, both_sides_of_a_fork_can_grow_and_relocate) {
  buffer_options options;
  options.reserve_bytes = 2 * page();
  growable_buffer a = make(std::move(options));
  ASSERT_TRUE(a.resize(2 * page()));
  put(dev(), a.address(), pattern(2 * page(), 1));
  auto b = a.fork();
  ASSERT_TRUE(b);
  ASSERT_TRUE(a.resize(16 * page()));
  ASSERT_TRUE(b->resize(16 * page()));
  put(dev(), a.address() + 2 * page(), pattern(14 * page(), 2));
  EXPECT_TRUE(holds(dev(), a.address(), 2 * page(), 1));
  EXPECT_TRUE(holds(dev(), b->address(), 2 * page(), 1));
  const stream s = make_stream();
  ASSERT_TRUE(b->make_writable(0, page(), s));
  put(dev(), b->address(), pattern(page(), 3));
  EXPECT_TRUE(holds(dev(), a.address(), 2 * page(), 1));
}

TEST_F(sharing, aliased_pages_cannot_be_forked) {
  growable_buffer a = filled(2, 1);
  auto b = a.alias(0, page());
  ASSERT_TRUE(b);
  EXPECT_TRUE(fails_with(outcome(a.fork()), errc::busy, "growable_buffer::fork"));
  EXPECT_TRUE(fails_with(outcome(b->fork()), errc::busy, "growable_buffer::fork"));
}

TEST_F(sharing, an_alias_that_is_gone_is_forgotten) {
  growable_buffer a = filled(2, 1), to = filled(0, 0);
  {
    auto b = a.alias(0, page());
    ASSERT_TRUE(b);
    EXPECT_TRUE(fails_with(a.splice(0, page(), to, 0), errc::busy, "growable_buffer::splice"));
  }
  auto child = a.fork();
  ASSERT_TRUE(child) << child.error().message();
  EXPECT_TRUE(holds(dev(), child->address(), 2 * page(), 1));
}

// A ring shows each page twice by itself.
TEST_F(sharing, a_ring_stays_aliased_without_its_source) {
  std::optional<growable_buffer> a = filled(1, 1);
  auto ring = a->alias(0, page(), 2);
  ASSERT_TRUE(ring);
  a.reset();
  EXPECT_TRUE(fails_with(outcome(ring->fork()), errc::busy, "growable_buffer::fork"));
}

TEST_F(sharing, splice_moves_pages_not_bytes) {
  growable_buffer a = filled(4, 1), b = filled(1, 2);
  const std::uint64_t before = physical();
  const driver_counts spent_before = counts();
  ASSERT_TRUE(a.splice(2 * page(), 2 * page(), b, page()));
  EXPECT_EQ((counts() - spent_before).bytes_on_device, 0u);
  EXPECT_EQ(physical(), before);
  EXPECT_EQ(a.size(), 4 * page()) << "sizes stay";
  EXPECT_EQ(b.size(), page());
  EXPECT_EQ(a.capacity(), 2 * page());
  EXPECT_EQ(b.capacity(), 3 * page());
  EXPECT_FALSE(a.committed(2 * page(), 1));
  const auto whole = pattern(4 * page(), 1);
  EXPECT_EQ(get(dev(), b.address() + page(), 2 * page()),
            std::vector<unsigned char>(whole.begin() + static_cast<std::ptrdiff_t>(2 * page()),
                                       whole.end()));
  put(dev(), b.address() + page(), pattern(2 * page(), 3));
  ASSERT_TRUE(a.resize(4 * page()));
  put(dev(), a.address() + 2 * page(), pattern(2 * page(), 4));
  EXPECT_TRUE(holds(dev(), b.address() + page(), 2 * page(), 3));
}

TEST_F(sharing, splice_under_a_fence_leaves_the_old_addresses_to_running_work) {
  growable_buffer a = filled(2, 1), b = filled(0, 0), sink = filled(2, 0);
  const stream s = make_stream();
  testing::hold(s.get());
  {
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(driver().copy_on_device_async(sink.address(), a.address(), 2 * page(), s.get()));
  }
  ASSERT_TRUE(a.splice(0, 2 * page(), b, 3 * page(), after(s)));
  EXPECT_TRUE(b.committed(3 * page(), 2 * page()));
  EXPECT_FALSE(a.committed(0, 1));
  EXPECT_EQ(dev().space().stats().retiring_mappings, 2u);
  testing::release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_TRUE(holds(dev(), sink.address(), 2 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address() + 3 * page(), 2 * page(), 1));
  EXPECT_EQ(dev().space().collect(), 2 * page());
  EXPECT_TRUE(holds(dev(), b.address() + 3 * page(), 2 * page(), 1));
}

TEST_F(sharing, splice_refuses_what_cannot_be) {
  growable_buffer a = filled(2, 1), b = filled(1, 2);
  const char *op = "growable_buffer::splice";
  const auto invalid = errc::invalid_argument;
  EXPECT_TRUE(fails_with(a.splice(1, page(), b, page()), invalid, op, 1, page()));
  EXPECT_TRUE(fails_with(a.splice(0, page(), b, 3), invalid, op, 3, page()));
  EXPECT_TRUE(fails_with(a.splice(0, page(), b, 0), invalid, op));
  EXPECT_TRUE(fails_with(a.splice(2 * page(), page(), b, page()), invalid, op));
  EXPECT_TRUE(fails_with(a.splice(0, page(), a, 4 * page()), invalid, op));
  EXPECT_TRUE(fails_with(a.splice(0, page(), b, b.reserved()), invalid, op, b.reserved() + page(),
                         b.reserved()));
  ASSERT_TRUE(a.splice(0, 0, b, page()));
  buffer_options options;
  options.force_copying = true;
  growable_buffer copying = make(std::move(options));
  ASSERT_TRUE(copying.resize(page()));
  EXPECT_TRUE(fails_with(a.splice(0, page(), copying, page()), errc::not_supported, op));
  EXPECT_TRUE(fails_with(copying.splice(0, page(), a, 2 * page()), errc::not_supported, op));
  EXPECT_TRUE(
      fails_with(outcome(copying.alias(0, page())), errc::not_supported, "growable_buffer::alias"));
  EXPECT_TRUE(
      fails_with(copying.decommit(0, page()), errc::not_supported, "growable_buffer::decommit"));
  auto twin = a.alias(0, page());
  ASSERT_TRUE(twin);
  EXPECT_TRUE(fails_with(a.splice(0, page(), b, page()), errc::busy, op));
  auto child = b.fork();
  ASSERT_TRUE(child);
  EXPECT_TRUE(fails_with(b.splice(0, page(), a, 2 * page()), errc::busy, op));
  EXPECT_TRUE(holds(dev(), a.address(), 2 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address(), page(), 2));
}

TEST_F(sharing, splice_between_devices_is_refused) {
  if (*device::count() < 2) GTEST_SKIP() << "needs two devices";
  growable_buffer a = filled(1, 1);
  const device second = open_device(1);
  buffer_options options;
  options.reserve_bytes = 8_MiB;
  auto b = growable_buffer::create(second, options);
  ASSERT_TRUE(b);
  EXPECT_TRUE(fails_with(a.splice(0, page(), *b, 0), errc::invalid_argument,
                         "growable_buffer::splice", 1, 0));
}

TEST_F(sharing, destroying_in_any_order_leaves_nothing) {
  for (int order = 0; order < 2; ++order) {
    std::optional<growable_buffer> a = filled(2, 1);
    std::optional<growable_buffer> b = std::move(*a->fork());
    std::optional<growable_buffer> c = filled(2, 1);
    std::optional<growable_buffer> d = std::move(*c->alias(0, 2 * page(), 2));
    if (order == 0) {
      a.reset();
      c.reset();
      EXPECT_TRUE(holds(dev(), b->address(), 2 * page(), 1));
      EXPECT_TRUE(holds(dev(), d->address(), 2 * page(), 1));
    } else {
      b.reset();
      d.reset();
      EXPECT_TRUE(holds(dev(), a->address(), 2 * page(), 1));
      EXPECT_TRUE(holds(dev(), c->address(), 2 * page(), 1));
    }
  }
  EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
}

}  // namespace
}  // namespace stillmap
