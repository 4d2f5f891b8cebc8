// The contracts of growable_buffer.h, on both implementations.
#include <gtest/gtest.h>

#include <utility>

#include "stillmap/vmm/base/units.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::holds;
using testing::pattern;
using testing::put;

enum class backing { mapped, copying };

class growable_buffer_contract : public testing::buffer_test,
                                 public ::testing::WithParamInterface<backing> {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (mapped() && !has_vmm()) {
      GTEST_SKIP() << "buffers of pages need VMM, which this device does not have";
    }
  }
  bool mapped() const { return GetParam() == backing::mapped; }
  growable_buffer make_one(buffer_options options = {}) const {
    options.force_copying = !mapped();
    if (options.reserve_bytes == 0) options.reserve_bytes = 64_MiB;
    return make(std::move(options));
  }
};

TEST_P(growable_buffer_contract, begins_empty_and_without_memory) {
  const std::uint64_t before = dev().space().stats().physical.bytes();
  buffer_options options;
  options.tag = "weights";
  const growable_buffer b = make_one(options);
  EXPECT_EQ(b.size(), 0u);
  EXPECT_EQ(b.capacity(), 0u);
  EXPECT_EQ(b.mapped_bytes(), 0u);
  EXPECT_EQ(b.in_place(), mapped());
  EXPECT_EQ(b.page_bytes(), page());
  EXPECT_EQ(b.tag(), "weights");
  EXPECT_EQ(b.device(), dev());
  EXPECT_EQ(b.stats().growths, 0u);
  EXPECT_EQ(dev().space().stats().physical.bytes(), before);
  if (mapped()) {
    EXPECT_TRUE(b.address());
    EXPECT_EQ(b.reserved(), 64_MiB);
  }
}

TEST_P(growable_buffer_contract, grows_to_any_size_in_whole_pages) {
  growable_buffer b = make_one();
  for (const std::size_t bytes : {std::size_t{1}, page() - 1, page(), page() + 1, 5 * page()}) {
    ASSERT_TRUE(b.resize(bytes));
    EXPECT_EQ(b.size(), bytes);
    EXPECT_GE(b.capacity(), bytes);
    EXPECT_EQ(b.capacity() % page(), 0u);
    EXPECT_EQ(b.mapped_bytes(), b.capacity());
    EXPECT_LE(b.capacity(), b.reserved());
    EXPECT_TRUE(b.committed(0, bytes));
  }
}

TEST_P(growable_buffer_contract, keeps_its_contents_while_growing) {
  growable_buffer b = make_one();
  const std::size_t steps[] = {1000, page() + 17, 3 * page(), 7 * page() + 1};
  std::size_t old = 0;
  for (unsigned i = 0; i < std::size(steps); ++i) {
    ASSERT_TRUE(b.resize(steps[i]));
    put(dev(), b.address() + old, pattern(steps[i] - old, i));
    std::size_t from = 0;
    for (unsigned j = 0; j <= i; ++j) {
      EXPECT_TRUE(holds(dev(), b.address() + from, steps[j] - from, j)) << "after step " << i;
      from = steps[j];
    }
    old = steps[i];
  }
}

TEST_P(growable_buffer_contract, an_address_changes_only_as_stats_say) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(1));
  device_address at = b.address();
  std::uint64_t moves = b.stats().relocations;
  for (std::size_t pages = 2; pages < 20; ++pages) {
    ASSERT_TRUE(b.resize(pages * page()));
    EXPECT_EQ(b.stats().relocations, b.address() == at ? moves : moves + 1);
    at = b.address();
    moves = b.stats().relocations;
  }
  if (mapped()) {
    EXPECT_EQ(moves, 0u);
    EXPECT_EQ(b.stats().bytes_copied, 0u);
  } else {
    EXPECT_GT(moves, 0u);
    EXPECT_GT(b.stats().bytes_copied, 0u);
  }
}

TEST_P(growable_buffer_contract, resizing_within_capacity_calls_nothing) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.reserve(4 * page()));
  EXPECT_EQ(b.size(), 0u);
  EXPECT_GE(b.capacity(), 4 * page());
  const std::uint64_t generation = b.generation();
  const buffer_stats stats = b.stats();
  const driver_counts before = counts();
  for (const std::size_t bytes : {std::size_t{1}, 4 * page(), page(), std::size_t{0}}) {
    ASSERT_TRUE(b.resize(bytes));
    ASSERT_TRUE(b.resize(bytes, stream_ref()));
    EXPECT_EQ(b.size(), bytes);
  }
  ASSERT_TRUE(b.reserve(3 * page()));
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_EQ(b.generation(), generation);
  EXPECT_EQ(b.stats().growths, stats.growths);
}

TEST_P(growable_buffer_contract, shrinking_keeps_pages_until_asked_to_give_them_back) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(6 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  const std::size_t had = b.capacity();
  ASSERT_TRUE(b.resize(page() + 1));
  EXPECT_EQ(b.capacity(), had);
  const std::uint64_t generation = b.generation();
  ASSERT_TRUE(b.shrink_to_fit());
  EXPECT_EQ(b.capacity(), 2 * page());
  EXPECT_EQ(b.mapped_bytes(), 2 * page());
  EXPECT_EQ(b.size(), page() + 1);
  EXPECT_GT(b.generation(), generation);
  EXPECT_FALSE(b.committed(2 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address(), page() + 1, 1) || !mapped());
  ASSERT_TRUE(b.resize(0));
  ASSERT_TRUE(b.shrink_to_fit());
  EXPECT_EQ(b.mapped_bytes(), 0u);
  ASSERT_TRUE(b.resize(page()));
  EXPECT_EQ(b.mapped_bytes(), page());
}

TEST_P(growable_buffer_contract, shrinking_keeps_what_is_in_use) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(6 * page()));
  ASSERT_TRUE(b.resize(page()));
  put(dev(), b.address(), pattern(page(), 9));
  ASSERT_TRUE(b.shrink_to_fit());
  EXPECT_TRUE(holds(dev(), b.address(), page(), 9));
}

TEST_P(growable_buffer_contract, shrinking_with_nothing_to_give_calls_nothing) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(page()));
  const driver_counts before = counts();
  ASSERT_TRUE(b.shrink_to_fit());
  ASSERT_TRUE(b.shrink_to_fit(fence()));
  EXPECT_EQ((counts() - before).total(), 0u);
}

TEST_P(growable_buffer_contract, generation_rises_with_every_change_of_pages) {
  growable_buffer b = make_one();
  std::uint64_t last = b.generation();
  for (std::size_t pages = 1; pages < 5; ++pages) {
    ASSERT_TRUE(b.reserve(b.capacity() + page()));
    EXPECT_GT(b.generation(), last);
    last = b.generation();
  }
}

TEST_P(growable_buffer_contract, committed_is_about_any_byte_range) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(2 * page()));
  EXPECT_TRUE(b.committed(0, 0));
  EXPECT_TRUE(b.committed(0, 2 * page()));
  EXPECT_TRUE(b.committed(page() - 1, 2));
  EXPECT_FALSE(b.committed(page(), page() + 1));
  EXPECT_FALSE(b.committed(SIZE_MAX, 1));
  EXPECT_FALSE(b.committed(1, SIZE_MAX));
}

TEST_P(growable_buffer_contract, commit_works_in_pages_and_twice_is_once) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.commit(0, 3 * page()));
  EXPECT_EQ(b.size(), 0u);
  EXPECT_TRUE(b.committed(0, 3 * page()));
  put(dev(), b.address(), pattern(3 * page(), 4));
  ASSERT_TRUE(b.resize(3 * page()));  // the fallback carries over what is in use
  const driver_counts before = counts();
  ASSERT_TRUE(b.commit(page(), 2 * page()));
  ASSERT_TRUE(b.commit(0, 0));
  EXPECT_EQ((counts() - before)[driver_call::MemMap], 0u);
  EXPECT_EQ((counts() - before)[driver_call::MemAlloc], 0u);
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 4));
  EXPECT_TRUE(fails_with(b.commit(1, page()), errc::invalid_argument, "growable_buffer::commit", 1,
                         page()));
  EXPECT_TRUE(fails_with(b.commit(page(), 1), errc::invalid_argument, "growable_buffer::commit", 1,
                         page()));
  EXPECT_EQ(b.mapped_bytes(), 3 * page());
}

TEST_P(growable_buffer_contract, refuses_sizes_no_machine_has_and_stays_as_it_was) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(page()));
  put(dev(), b.address(), pattern(page(), 3));
  const device_address at = b.address();
  const std::uint64_t generation = b.generation();
  const std::size_t reserved = b.reserved();
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + page(), SIZE_MAX / 4}) {
    for (const status &s : {b.resize(bytes), b.reserve(bytes), b.resize(bytes, stream_ref())}) {
      ASSERT_FALSE(s) << bytes;
      EXPECT_TRUE(s.error().is(errc::invalid_argument) || s.error().is(errc::out_of_memory) ||
                  s.error().is(errc::address_space_exhausted))
          << s.error().message();
      EXPECT_GE(s.error().value, bytes - reserved - page()) << s.error().message();
      EXPECT_NE(s.error().limit, 0u) << s.error().message();
    }
  }
  EXPECT_EQ(b.size(), page());
  EXPECT_EQ(b.reserved(), reserved);
  EXPECT_EQ(b.address(), at);
  EXPECT_EQ(b.generation(), generation);
  EXPECT_TRUE(holds(dev(), at, page(), 3));
}

TEST_P(growable_buffer_contract, runs_out_of_memory_and_stays_as_it_was) {
  STILLMAP_NEEDS_HOSTCUDA();
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 5));
  const device_address at = b.address();
  leave_free(3);
  const status s = b.resize(8 * page());
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::out_of_memory)) << s.error().message();
  EXPECT_EQ(s.error().limit % page(), 0u);
  EXPECT_EQ(b.size(), 2 * page());
  EXPECT_EQ(b.capacity(), 2 * page());
  EXPECT_EQ(b.mapped_bytes(), 2 * page());
  EXPECT_EQ(b.address(), at);
  EXPECT_TRUE(holds(dev(), at, 2 * page(), 5));
  EXPECT_EQ(dev().memory()->free.bytes(), 3 * page()) << "what was made for it was not given back";
  testing::hostcuda_control::occupy(0, 0);
  ASSERT_TRUE(b.resize(8 * page()));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 5));
}

TEST_P(growable_buffer_contract, moves_and_leaves_an_empty_buffer_that_refuses) {
  growable_buffer a = make_one();
  ASSERT_TRUE(a.resize(page()));
  const device_address at = a.address();
  growable_buffer b = std::move(a);
  EXPECT_EQ(b.address(), at);
  EXPECT_EQ(b.size(), page());
  // NOLINTBEGIN(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(a.capacity(), 0u);
  EXPECT_EQ(a.reserved(), 0u);
  EXPECT_EQ(a.mapped_bytes(), 0u);
  EXPECT_EQ(a.page_bytes(), 0u);
  EXPECT_EQ(a.generation(), 0u);
  EXPECT_FALSE(a.address());
  EXPECT_FALSE(a.in_place());
  EXPECT_EQ(a.device(), dev());
  EXPECT_EQ(a.tag(), "");
  EXPECT_EQ(a.stats().growths, 0u);
  EXPECT_FALSE(a.committed(0, 0));
  const auto refused = [](const status &s, const char *op) {
    return fails_with(s, errc::invalid_argument, op);
  };
  EXPECT_TRUE(refused(a.resize(1), "growable_buffer::resize"));
  EXPECT_TRUE(refused(a.resize(1, stream_ref()), "growable_buffer::resize"));
  EXPECT_TRUE(refused(a.reserve(1), "growable_buffer::reserve"));
  EXPECT_TRUE(refused(a.reserve(1, stream_ref()), "growable_buffer::reserve"));
  EXPECT_TRUE(refused(a.shrink_to_fit(), "growable_buffer::shrink_to_fit"));
  EXPECT_TRUE(refused(a.shrink_to_fit(fence()), "growable_buffer::shrink_to_fit"));
  EXPECT_TRUE(refused(a.commit(0, 0), "growable_buffer::commit"));
  EXPECT_TRUE(refused(a.decommit(0, 0), "growable_buffer::decommit"));
  EXPECT_TRUE(refused(a.decommit(0, 0, fence()), "growable_buffer::decommit"));
  EXPECT_TRUE(refused(testing::outcome(a.alias(0, page())), "growable_buffer::alias"));
  EXPECT_TRUE(refused(testing::outcome(a.fork()), "growable_buffer::fork"));
  EXPECT_TRUE(refused(a.make_writable(0, 1, {}), "growable_buffer::make_writable"));
  EXPECT_TRUE(refused(a.splice(0, 0, b, 0), "growable_buffer::splice"));
  EXPECT_TRUE(refused(b.splice(0, 0, a, 0), "growable_buffer::splice"));
  EXPECT_TRUE(refused(a.close(fence()), "growable_buffer::close"));
  a = std::move(b);
  EXPECT_EQ(a.address(), at);
  growable_buffer &self = a;
  a = std::move(self);
  EXPECT_EQ(a.size(), page());
  // NOLINTEND(bugprone-use-after-move)
}

TEST_P(growable_buffer_contract, assigning_gives_back_what_was_there) {
  growable_buffer a = make_one(), b = make_one();
  ASSERT_TRUE(a.resize(3 * page()));
  ASSERT_TRUE(b.resize(page()));
  a = std::move(b);
  EXPECT_EQ(a.size(), page());
  EXPECT_EQ(dev().space().stats().mapped_bytes, page());
}

TEST_P(growable_buffer_contract, closes_once) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(2 * page()));
  ASSERT_TRUE(b.close(fence()));
  EXPECT_EQ(b.size(), 0u);
  EXPECT_EQ(b.capacity(), 0u);
  EXPECT_FALSE(b.address());
  EXPECT_EQ(dev().space().stats().mapped_bytes, 0u);
  EXPECT_EQ(dev().space().stats().reserved_bytes, 0u);
  EXPECT_TRUE(fails_with(b.close(fence()), errc::invalid_argument, "growable_buffer::close"));
  EXPECT_TRUE(fails_with(b.resize(1), errc::invalid_argument, "growable_buffer::resize"));
}

TEST_P(growable_buffer_contract, the_ledger_knows_its_memory) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(3 * page()));
  const auto found = dev().space().mappings(b.range());
  std::size_t bytes = 0;
  for (const mapping_record &m : found) {
    bytes += m.range.bytes;
    EXPECT_EQ(m.state, mapping_state::mapped);
    ASSERT_EQ(m.access.size(), 1u);
    EXPECT_EQ(m.access[0].location, on_device(0));
    EXPECT_EQ(m.access[0].mode, access_mode::read_write);
    EXPECT_EQ(static_cast<bool>(m.backing), mapped());
  }
  EXPECT_EQ(bytes, 3 * page());
  EXPECT_EQ(dev().space().stats().mapped_bytes, 3 * page());
  EXPECT_EQ(dev().space().stats().physical.bytes(), 3 * page());
}

TEST_P(growable_buffer_contract, fork_is_a_copy_that_can_be_written_apart) {
  growable_buffer a = make_one();
  ASSERT_TRUE(a.resize(3 * page()));
  put(dev(), a.address(), pattern(3 * page(), 1));
  auto forked = a.fork();
  ASSERT_TRUE(forked) << forked.error().message();
  growable_buffer b = std::move(*forked);
  EXPECT_EQ(b.size(), a.size());
  EXPECT_NE(b.address(), a.address());
  EXPECT_TRUE(holds(dev(), b.address(), 3 * page(), 1));
  EXPECT_EQ(b.stats().bytes_copied, mapped() ? 0 : 3 * page());
  const stream s = make_stream();
  ASSERT_TRUE(b.make_writable(page(), 1, s));
  put(dev(), b.address() + page(), pattern(page(), 2));
  EXPECT_TRUE(holds(dev(), a.address(), 3 * page(), 1));
  EXPECT_TRUE(holds(dev(), b.address() + page(), page(), 2));
  ASSERT_TRUE(a.make_writable(0, 3 * page(), s));
  put(dev(), a.address(), pattern(3 * page(), 3));
  EXPECT_TRUE(holds(dev(), b.address() + page(), page(), 2));
  EXPECT_TRUE(holds(dev(), a.address(), 3 * page(), 3));
  EXPECT_FALSE(b.make_writable(b.capacity(), 1, s));
}

TEST_P(growable_buffer_contract, leaves_no_context_or_a_foreign_one_as_it_was) {
  const auto run = [&] {
    growable_buffer b = make_one();
    const stream s = make_stream();
    ASSERT_TRUE(b.resize(3 * page(), s));
    ASSERT_TRUE(b.resize(page()));
    ASSERT_TRUE(b.shrink_to_fit(after(s)));
    ASSERT_TRUE(b.fork());
    ASSERT_TRUE(b.make_writable(0, 1, s));
  };
  ASSERT_EQ(*driver().current_context(), nullptr);
  run();
  EXPECT_EQ(*driver().current_context(), nullptr);
  if (device::count().value() < 2) return;
  const device other = open_device(1);
  const context_guard guard(driver(), other.context());
  run();
  EXPECT_EQ(*driver().current_context(), other.context());
}

// resize(300 GiB) of a 140 GiB device used to create pages until the host was out of memory.
TEST_P(growable_buffer_contract, refuses_more_than_the_device_has_before_it_creates_a_page) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(page()));
  const std::size_t total = dev().total_memory().bytes();
  const std::size_t bytes = round_up(2 * total, page());
  const driver_counts before = counts();
  EXPECT_TRUE(
      fails_with(b.resize(bytes), errc::out_of_memory, "growable_buffer::resize", bytes, total));
  EXPECT_EQ((counts() - before).total(), 0u);
  EXPECT_EQ(b.size(), page());
}

// Regression: the error named the missing bytes as those that were requested, and commit failed as resize.
TEST_P(growable_buffer_contract, says_what_was_asked_for_and_how_much_there_was) {
  if (!on_hostcuda()) GTEST_SKIP() << "needs hostcuda's switches";
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(3 * page()));
  leave_free(2);
  const std::size_t most = mapped() ? 5 * page() : 2 * page();
  const std::size_t n = 7 * page();
  EXPECT_TRUE(fails_with(b.resize(n), errc::out_of_memory, "growable_buffer::resize", n, most));
  EXPECT_TRUE(fails_with(b.reserve(n), errc::out_of_memory, "growable_buffer::reserve", n, most));
  if (!mapped()) return;
  EXPECT_TRUE(fails_with(b.commit(page(), 6 * page()), errc::out_of_memory,
                         "growable_buffer::commit", 6 * page(), 4 * page()));
  EXPECT_TRUE(b.commit(3 * page(), 2 * page())) << "the limit is exact";
}

// Regression: the driver's own error said nothing of forks.
TEST_P(growable_buffer_contract, copies_to_shared_pages_say_what_to_do) {
  if (!mapped()) GTEST_SKIP() << "a copying buffer's fork has memory of its own";
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(2 * page()));
  auto copy = b.fork();
  ASSERT_TRUE(copy);
  unsigned char byte = 1;
  const stream_ref s = stream_ref::legacy();
  const char *op = "growable_buffer::copy_from_host";
  EXPECT_TRUE(fails_with(copy->copy_from_host(page() + 5, &byte, 1, s), errc::busy, op, page(), 0));
  EXPECT_TRUE(copy->copy_to_host(&byte, page(), 1, s));
  ASSERT_TRUE(copy->make_writable(page(), 1, s));
  EXPECT_TRUE(copy->copy_from_host(page(), &byte, 1, s));
  EXPECT_TRUE(fails_with(copy->copy_from_host(0, &byte, 1, s), errc::busy, op));
}

TEST_P(growable_buffer_contract, counts_the_bytes_that_growing_copies) {
  growable_buffer b = make_one();
  ASSERT_TRUE(b.resize(page()));
  EXPECT_EQ(b.stats().bytes_copied, 0u);
  ASSERT_TRUE(b.resize(3 * page()));
  EXPECT_EQ(b.stats().bytes_copied, mapped() ? 0 : page());
  ASSERT_TRUE(b.resize(4 * page()));
  EXPECT_EQ(b.stats().bytes_copied, mapped() ? 0 : 4 * page());
}

TEST_P(growable_buffer_contract, copies_from_and_to_the_host_on_a_stream) {
  growable_buffer b = make_one();
  const stream s = make_stream();
  ASSERT_TRUE(b.resize(2 * page(), s));
  const auto bytes = testing::pattern(page(), 3);
  ASSERT_TRUE(b.copy_from_host(page() / 2, bytes.data(), bytes.size(), s));
  EXPECT_TRUE(testing::holds(dev(), b.address() + page() / 2, page(), 3));
  std::vector<unsigned char> back(bytes.size());
  ASSERT_TRUE(b.copy_to_host(back.data(), page() / 2, back.size(), stream_ref::legacy()));
  EXPECT_EQ(back, bytes);
  EXPECT_TRUE(b.copy_to_host(nullptr, 0, 0, s));
  const std::size_t end = b.capacity() + 1;
  EXPECT_TRUE(fails_with(b.copy_to_host(back.data(), b.capacity(), 1, s), errc::invalid_argument,
                         "growable_buffer::copy_to_host", end, b.capacity()));
  EXPECT_TRUE(fails_with(b.copy_from_host(SIZE_MAX, bytes.data(), 2, s), errc::invalid_argument,
                         "growable_buffer::copy_from_host", SIZE_MAX, b.capacity()));
}

INSTANTIATE_TEST_SUITE_P(on, growable_buffer_contract,
                         ::testing::Values(backing::mapped, backing::copying),
                         [](const auto &each) {
                           return each.param == backing::mapped ? "pages" : "copies";
                         });

}  // namespace
}  // namespace stillmap
