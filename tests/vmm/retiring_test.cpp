// Retiring mappings: they wait for their fence, are taken back by their owner without a driver call, or
// give their pages to another buffer that waits on a stream.
#include <gtest/gtest.h>

#include "stillmap/vmm/base/units.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::hold;
using testing::holds;
using testing::pattern;
using testing::put;
using testing::release;

class retiring : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  growable_buffer small() const {
    buffer_options options;
    options.reserve_bytes = 32_MiB;
    return make(std::move(options));
  }
  address_space_stats books() const { return dev().space().stats(); }
};

TEST_F(retiring, pages_wait_for_their_fence_without_the_host) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(4 * page()));
  hold(s.get());
  const fence busy = after(s);
  ASSERT_TRUE(b.resize(page()));
  const driver_counts before = counts();
  ASSERT_TRUE(b.shrink_to_fit(busy));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemUnmap], 0u);
  EXPECT_EQ(spent[driver_call::EventSynchronize], 0u);
  EXPECT_EQ(spent[driver_call::CtxSynchronize], 0u);
  EXPECT_EQ(b.mapped_bytes(), page());
  EXPECT_EQ(b.capacity(), page());
  EXPECT_FALSE(b.committed(page(), 1));
  EXPECT_EQ(books().retiring_mappings, 3u);
  EXPECT_EQ(books().live_mappings, 4u);
  EXPECT_EQ(books().mapped_bytes, 4 * page());
  for (const mapping_record &m : dev().space().mappings({b.address() + page(), 3 * page()})) {
    EXPECT_EQ(m.state, mapping_state::retiring);
  }
  EXPECT_EQ(dev().space().collect(), 0u);
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(dev().space().collect(), 3 * page());
  EXPECT_EQ(books().retiring_mappings, 0u);
  EXPECT_EQ(books().mapped_bytes, page());
  EXPECT_EQ(dev().pool()->stats().free.bytes(), 3 * page());
}

TEST_F(retiring, the_device_may_use_them_until_the_fence) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(4 * page()));
  put(dev(), b.address() + 3 * page(), pattern(page(), 7));
  hold(s.get());
  std::vector<unsigned char> out(page());
  {
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(
        driver().copy_on_device_async(b.address(), b.address() + 3 * page(), page(), s.get()));
  }
  const fence busy = after(s);
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(b.shrink_to_fit(busy));
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_TRUE(holds(dev(), b.address(), page(), 7));
}

TEST_F(retiring, revived_by_their_owner_without_mapping_anything) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(4 * page()));
  put(dev(), b.address(), pattern(4 * page(), 2));
  hold(s.get());
  const fence busy = after(s);
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(b.shrink_to_fit(busy));
  const std::uint64_t generation = b.generation();
  const driver_counts before = counts();
  ASSERT_TRUE(b.resize(4 * page(), s));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemMap], 0u);
  EXPECT_EQ(spent[driver_call::MemSetAccess], 0u);
  EXPECT_EQ(spent[driver_call::MemUnmap], 0u);
  EXPECT_EQ(spent[driver_call::MemCreate], 0u);
  EXPECT_EQ(spent[driver_call::StreamWaitEvent], 1u);
  EXPECT_EQ(b.generation(), generation) << "its pages are the same";
  EXPECT_EQ(b.capacity(), 4 * page());
  EXPECT_EQ(books().retiring_mappings, 0u);
  release(s.get());
  EXPECT_TRUE(holds(dev(), b.address(), 4 * page(), 2));
}

TEST_F(retiring, revived_in_part_and_mapped_for_the_rest) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(4 * page()));
  hold(s.get());
  ASSERT_TRUE(b.resize(2 * page()));
  ASSERT_TRUE(b.shrink_to_fit(after(s)));
  const driver_counts before = counts();
  ASSERT_TRUE(b.resize(6 * page(), s));
  EXPECT_EQ((counts() - before)[driver_call::MemMap], 2u);
  EXPECT_EQ((counts() - before)[driver_call::MemSetAccess], 1u);
  EXPECT_EQ(b.capacity(), 6 * page());
  ASSERT_TRUE(b.resize(3 * page()));
  ASSERT_TRUE(b.shrink_to_fit(after(s)));
  const driver_counts again = counts();
  ASSERT_TRUE(b.resize(4 * page(), s));  // one of three that wait
  EXPECT_EQ((counts() - again)[driver_call::MemMap], 0u);
  EXPECT_EQ(books().retiring_mappings, 2u);
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(dev().space().collect(), 2 * page());
  EXPECT_EQ(b.capacity(), 4 * page());
}

TEST_F(retiring, revived_without_a_stream_waits_on_the_host) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(2 * page()));
  ASSERT_TRUE(b.resize(0));
  const fence f = after(s);
  ASSERT_TRUE(b.shrink_to_fit(f));
  ASSERT_TRUE(b.resize(2 * page()));
  EXPECT_EQ(books().retiring_mappings, 0u);
  put(dev(), b.address(), pattern(2 * page(), 3));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 3));
}

TEST_F(retiring, sparse_ranges_revive_too) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.commit(2 * page(), 4 * page()));
  hold(s.get());
  ASSERT_TRUE(b.decommit(3 * page(), 2 * page(), after(s)));
  EXPECT_FALSE(b.committed(2 * page(), 2 * page()));
  const driver_counts before = counts();
  ASSERT_TRUE(b.commit(2 * page(), 4 * page(), s));
  EXPECT_EQ((counts() - before)[driver_call::MemMap], 0u);
  EXPECT_TRUE(b.committed(2 * page(), 4 * page()));
  release(s.get());
}

TEST_F(retiring, what_has_passed_its_fence_is_reused_before_a_page_is_created) {
  growable_buffer a = small(), b = small();
  const stream s = make_stream();
  ASSERT_TRUE(a.resize(3 * page()));
  testing::hold(s.get());
  ASSERT_TRUE(a.resize(page()));
  ASSERT_TRUE(a.shrink_to_fit(after(s)));
  testing::release(s.get());
  ASSERT_TRUE(s.synchronize());
  const driver_counts before = counts();
  ASSERT_TRUE(b.resize(2 * page()));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemCreate], 0u);
  EXPECT_EQ(spent[driver_call::MemUnmap], 1u);
  EXPECT_EQ(dev().space().stats().retiring_mappings, 0u);
}

TEST_F(retiring, stolen_by_another_buffer_when_memory_is_short_and_its_stream_waits) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer a = small(), b = small();
  const stream busy = make_stream(), other = make_stream();
  ASSERT_TRUE(a.resize(4 * page()));
  leave_free(1);
  hold(busy.get());
  ASSERT_TRUE(a.resize(page()));
  ASSERT_TRUE(a.shrink_to_fit(after(busy)));
  const driver_counts before = counts();
  ASSERT_TRUE(b.resize(3 * page(), other));
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent[driver_call::MemMap], 3u);
  EXPECT_EQ(spent[driver_call::StreamWaitEvent], 1u);
  EXPECT_EQ(spent[driver_call::EventSynchronize], 0u) << "the host did not wait";
  EXPECT_EQ(spent[driver_call::MemUnmap], 0u);
  const fence later = after(other);
  EXPECT_FALSE(*fence(later).passed()) << "the consumer must wait for the pages' old users";
  release(busy.get());
  ASSERT_TRUE(other.synchronize());
  put(dev(), b.address(), pattern(3 * page(), 4));
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 4));
  EXPECT_EQ(dev().space().collect(), 3 * page());
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 4));
}

TEST_F(retiring, what_was_stolen_is_not_revived) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer a = small(), b = small();
  const stream busy = make_stream(), other = make_stream();
  ASSERT_TRUE(a.resize(4 * page()));
  leave_free(1);
  hold(busy.get());
  ASSERT_TRUE(a.resize(2 * page()));
  ASSERT_TRUE(a.shrink_to_fit(after(busy)));
  ASSERT_TRUE(b.resize(2 * page(), other));  // one free page, one stolen
  testing::hostcuda_control::occupy(0, 0);
  release(busy.get());
  ASSERT_TRUE(a.resize(4 * page(), busy));
  put(dev(), a.address(), pattern(4 * page(), 5));
  ASSERT_TRUE(other.synchronize());
  put(dev(), b.address(), pattern(2 * page(), 6));
  EXPECT_TRUE(holds(dev(), a.address(), 4 * page(), 5));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 6));
}

TEST_F(retiring, without_a_stream_the_host_waits_for_pages_when_memory_is_short) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer a = small(), b = small();
  const stream s = make_stream();
  ASSERT_TRUE(a.resize(4 * page()));
  leave_free(0);
  ASSERT_TRUE(a.resize(page()));
  const fence f = after(s);
  ASSERT_TRUE(a.shrink_to_fit(f));
  ASSERT_TRUE(b.resize(3 * page()));
  EXPECT_EQ(b.capacity(), 3 * page());
  put(dev(), b.address(), pattern(3 * page(), 4));
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 4));
}

TEST_F(retiring, a_failed_theft_leaves_them_where_they_were) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer a = small(), b = small();
  const stream busy = make_stream(), other = make_stream();
  ASSERT_TRUE(a.resize(4 * page()));
  leave_free(1);
  hold(busy.get());
  ASSERT_TRUE(a.resize(2 * page()));
  ASSERT_TRUE(a.shrink_to_fit(after(busy)));
  testing::hostcuda_control::fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(b.resize(3 * page(), other));
  EXPECT_EQ(b.mapped_bytes(), 0u);
  const driver_counts before = counts();
  ASSERT_TRUE(a.resize(2 * page(), other));
  EXPECT_EQ((counts() - before).total(), 0u);
  release(busy.get());
  ASSERT_TRUE(busy.synchronize());
  dev().space().collect(true);
  EXPECT_EQ(dev().pool()->stats().created.bytes(), 2 * page() + dev().pool()->stats().free.bytes());
}

// Of a pool that is destroyed before the device, or with it.
TEST_F(retiring, mappings_that_the_driver_never_unmaps_go_with_their_pool) {
  STILLMAP_NEEDS_HOSTCUDA();
  expect_unreturnable();
  const auto never_unmapped = [this](std::vector<std::shared_ptr<page_pool>> pools) {
    growable_buffer b = make({.reserve_bytes = 32_MiB, .pools = std::move(pools)});
    const stream s = make_stream();
    ASSERT_TRUE(b.resize(4 * page()));
    hold(s.get());
    ASSERT_TRUE(b.close(after(s)));
    release(s.get());
    EXPECT_EQ(books().retiring_mappings, 4u);
    testing::hostcuda_control::fail_from("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  };
  std::uint64_t reported = background_error_count();
  never_unmapped({*page_pool::create(dev(), {})});
  EXPECT_GT(background_error_count(), reported);
  EXPECT_EQ(books().retiring_mappings, 0u);
  EXPECT_EQ(books().live_blocks, 0u);
  testing::hostcuda_control::stop_failing("cuMemUnmap");
  never_unmapped({});
  reported = background_error_count();
  close_device();
  EXPECT_GT(background_error_count(), reported);
}

TEST_F(retiring, aliased_pages_are_not_revived_but_mapped_anew) {
  growable_buffer a = small();
  const stream s = make_stream();
  ASSERT_TRUE(a.resize(2 * page()));
  auto twin = a.alias(page(), page());
  ASSERT_TRUE(twin);
  put(dev(), twin->address(), pattern(page(), 1));
  ASSERT_TRUE(a.resize(page()));
  hold(s.get());
  const fence f = after(s);
  ASSERT_TRUE(a.shrink_to_fit(f));
  release(s.get());
  ASSERT_TRUE(a.resize(2 * page(), s));
  put(dev(), a.address() + page(), pattern(page(), 2));
  EXPECT_TRUE(holds(dev(), twin->address(), page(), 1)) << "the page is the twin's alone by now";
  ASSERT_TRUE(a.fork()) << "none of its pages is aliased any more";
}

TEST_F(retiring, forked_pages_are_not_revived_read_only) {
  growable_buffer a = small();
  const stream s = make_stream();
  ASSERT_TRUE(a.resize(2 * page()));
  {
    auto child = a.fork();
    ASSERT_TRUE(child);
  }
  ASSERT_TRUE(a.resize(0));
  hold(s.get());
  const fence f = after(s);
  ASSERT_TRUE(a.shrink_to_fit(f));
  release(s.get());
  ASSERT_TRUE(a.resize(2 * page(), s));
  put(dev(), a.address(), pattern(2 * page(), 2));
  EXPECT_TRUE(holds(dev(), a.address(), 2 * page(), 2));
}

TEST_F(retiring, spliced_pages_are_not_revived_by_the_buffer_they_left) {
  growable_buffer a = small(), b = small();
  const stream s = make_stream();
  ASSERT_TRUE(a.resize(2 * page()));
  put(dev(), a.address(), pattern(2 * page(), 1));
  hold(s.get());
  const fence f = after(s);
  ASSERT_TRUE(a.splice(page(), page(), b, 0, f));
  release(s.get());
  ASSERT_TRUE(a.resize(2 * page(), s));
  put(dev(), a.address() + page(), pattern(page(), 9));
  const std::vector<unsigned char> whole = pattern(2 * page(), 1);
  EXPECT_EQ(
      testing::get(dev(), b.address(), page()),
      std::vector<unsigned char>(whole.begin() + static_cast<std::ptrdiff_t>(page()), whole.end()));
}

TEST_F(retiring, close_does_not_wait_and_the_addresses_stay_until_the_fence) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(3 * page()));
  hold(s.get());
  ASSERT_TRUE(b.close(after(s)));
  EXPECT_EQ(books().retiring_mappings, 3u);
  EXPECT_EQ(books().reserved_bytes, 32_MiB);
  release(s.get());
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(dev().space().collect(), 3 * page());
  EXPECT_EQ(books().reserved_bytes, 0u);
  EXPECT_EQ(books().live_blocks, 0u);
}

TEST_F(retiring, settle_waits_for_one_range_only) {
  growable_buffer a = small(), b = small();
  const stream held = make_stream(), s = make_stream();
  ASSERT_TRUE(a.resize(2 * page()));
  ASSERT_TRUE(b.resize(2 * page()));
  hold(held.get());
  ASSERT_TRUE(a.decommit(0, 2 * page(), after(held)));
  const fence quick = after(s);
  ASSERT_TRUE(b.decommit(0, 2 * page(), quick));
  ASSERT_TRUE(dev().space().collect_range(b.range()));
  EXPECT_TRUE(dev().space().mappings(b.range()).empty());
  EXPECT_EQ(dev().space().mappings(a.range()).size(), 2u);
  release(held.get());
  ASSERT_TRUE(dev().space().collect_range(a.range()));
  EXPECT_EQ(books().live_mappings, 0u);
}

TEST_F(retiring, a_fence_that_has_passed_gives_back_at_once) {
  growable_buffer b = small();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(3 * page()));
  ASSERT_TRUE(b.resize(0));
  const fence f = after(s);
  ASSERT_TRUE(s.synchronize());
  const driver_counts before = counts();
  ASSERT_TRUE(b.shrink_to_fit(f));
  EXPECT_EQ((counts() - before)[driver_call::MemUnmap], 1u);
  EXPECT_EQ(books().retiring_mappings, 0u);
  EXPECT_EQ(books().live_mappings, 0u);
}

}  // namespace
}  // namespace stillmap
