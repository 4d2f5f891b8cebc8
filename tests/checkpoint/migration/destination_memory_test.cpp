// Memory of an arriving task: its chunks, and the thread that creates its pages.
#include "stillmap/checkpoint/migration/internal/destination_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "stillmap/vmm/base/operation.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"

namespace stillmap::migration::testing {
namespace {

using namespace std::chrono_literals;
namespace hostcuda_control = stillmap::testing::hostcuda_control;

constexpr std::uint32_t arriving_chunk_bytes = 64 << 10;

class arriving : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
  }

  // Pages 3, 5, 7, ...
  layout_message arriving_layout(std::uint32_t pages) const {
    const device_address at(stillmap::testing::far_away);
    physical_properties here;
    here.location = on_device(checkpoint::memory_layout::own_device);
    layout_message l;
    l.layout.blocks = {{{at, pages * page()}, "weights"}};
    l.layout.pages.assign(pages, {page(), here});
    l.layout.access = {{{here.location, access_mode::read_write}}};
    for (std::uint32_t i = 0; i < pages; ++i) {
      l.layout.places.push_back({at + i * page(), i, 0});
      l.pages.push_back(3 + 2 * i);
    }
    return l;
  }
  std::uint32_t chunks_of_page() const {
    return static_cast<std::uint32_t>(page() / arriving_chunk_bytes);
  }
};

TEST_F(arriving, the_chunks_that_differ_are_named) {
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  ASSERT_DONE(m.prepare(arriving_layout(2)));
  const auto round = m.begin_round();
  ASSERT_DONE(round);
  EXPECT_EQ(*round, 2 * chunks_of_page());
  std::vector<image::digest> sealed;
  for (const std::uint32_t number : {3u, 5u}) {
    for (std::uint32_t i = 0; i < chunks_of_page(); ++i) {
      image::digest d;
      d.bytes[0] = static_cast<std::byte>(number);
      d.bytes[1] = static_cast<std::byte>(i);
      ASSERT_DONE(m.range_of(chunk_number(number, i)));
      m.received(chunk_number(number, i), d);
      sealed.push_back(d);
    }
  }
  m.end_round();
  auto different = m.compare(sealed);
  ASSERT_DONE(different);
  EXPECT_TRUE(different->empty());
  sealed[1].bytes[2] = sealed[chunks_of_page() + 2].bytes[2] = std::byte{1};
  different = m.compare(sealed);
  ASSERT_DONE(different);
  EXPECT_EQ(*different, (std::vector<std::uint64_t>{chunk_number(3, 1), chunk_number(5, 2)}));
}

TEST_F(arriving, a_chunk_after_the_last_one_of_its_page_is_refused) {
  const operation_scope scope("migration::receive");
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  ASSERT_DONE(m.prepare(arriving_layout(2)));
  ASSERT_DONE(m.range_of(chunk_number(3, chunks_of_page() - 1)));
  for (const std::uint64_t chunk : {chunk_number(3, chunks_of_page()), chunk_number(4, 0)}) {
    EXPECT_TRUE(stillmap::testing::fails_with(stillmap::testing::outcome(m.range_of(chunk)),
                                              errc::corrupt, "migration::receive", chunk, 0));
  }
}

TEST_F(arriving, memory_that_was_passed_on_is_no_longer_prepared) {
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  EXPECT_FALSE(m.prepared());
  ASSERT_DONE(m.prepare(arriving_layout(1)));
  EXPECT_TRUE(m.prepared());
  const auto same = m.compare(std::vector<image::digest>(chunks_of_page()));
  ASSERT_DONE(same);
  EXPECT_EQ(same->size(), chunks_of_page()) << "nothing has arrived";
  const checkpoint::restored_memory taken = m.take();
  EXPECT_EQ(taken.bytes(), page());
  EXPECT_FALSE(m.prepared());
  EXPECT_FALSE(m.begin_round());
}

TEST_F(arriving, a_seal_and_a_commit_are_refused_during_a_round_and_no_round_follows_a_commit) {
  const operation_scope scope("migration::receive");
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  ASSERT_DONE(m.prepare(arriving_layout(1)));
  const std::vector<image::digest> sealed(chunks_of_page());
  ASSERT_DONE(m.begin_round());
  EXPECT_TRUE(stillmap::testing::fails_with(stillmap::testing::outcome(m.compare(sealed)),
                                            errc::corrupt, "migration::receive", 1, 0));
  EXPECT_TRUE(
      stillmap::testing::fails_with(m.close_rounds(), errc::corrupt, "migration::receive", 1, 0));
  m.end_round();
  ASSERT_DONE(m.compare(sealed));
  ASSERT_DONE(m.close_rounds());
  EXPECT_TRUE(stillmap::testing::fails_with(stillmap::testing::outcome(m.begin_round()),
                                            errc::corrupt, "migration::receive", 0, 0));
}

// The seventeenth page, which is of the next batch, is not created before a chunk of the first could
// be written.
TEST_F(arriving, a_chunk_does_not_wait_for_later_pages) {
  std::promise<void> writable;
  std::atomic<bool> in_time{false};
  std::function<void()> first_batch = [] { std::this_thread::sleep_for(50ms); };
  std::function<void()> second_batch = [&] {
    in_time = writable.get_future().wait_for(20s) == std::future_status::ready;
  };
  hostcuda_control::before("cuMemMap", 1, first_batch);  // until range_of() waits
  hostcuda_control::before("cuMemCreate", 17, second_batch);
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  ASSERT_DONE(m.prepare(arriving_layout(17)));
  const auto range = m.range_of(chunk_number(3, 0));
  writable.set_value();
  ASSERT_DONE(range);
  ASSERT_DONE(m.range_of(chunk_number(3 + 2 * 16, 0)));
  EXPECT_TRUE(in_time);
}

// The thread that creates pages notifies of its end, too: no batch is mapped here.
TEST_F(arriving, comparing_ends_when_no_page_can_be_created) {
  std::function<void()> linger = [] { std::this_thread::sleep_for(50ms); };
  hostcuda_control::before("cuMemCreate", 1, linger);  // until compare() waits
  hostcuda_control::fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  ASSERT_DONE(m.prepare(arriving_layout(1)));
  auto compared = std::async(std::launch::async, [&] {
    return m.compare(std::vector<image::digest>(chunks_of_page())).has_value();
  });
  const bool ended = compared.wait_for(20s) == std::future_status::ready;
  EXPECT_TRUE(ended);
  if (!ended) ASSERT_DONE(m.prepare(arriving_layout(1)));  // wakes it
  EXPECT_EQ(compared.get(), !ended);
}

TEST_F(arriving, a_new_layout_waits_until_no_page_is_being_created) {
  std::promise<void> creating, reserving;
  std::atomic<bool> at_once{false};
  std::function<void()> create = [&] {
    creating.set_value();
    at_once = reserving.get_future().wait_for(300ms) == std::future_status::ready;
  };
  std::function<void()> reserve = [&] { reserving.set_value(); };
  hostcuda_control::before("cuMemCreate", 1, create);
  destination_memory m(dev(), arriving_chunk_bytes, 0);
  ASSERT_DONE(m.prepare(arriving_layout(1)));
  creating.get_future().wait();
  hostcuda_control::before("cuMemAddressReserve", 1, reserve);
  ASSERT_DONE(m.prepare(arriving_layout(2)));
  EXPECT_FALSE(at_once);
  ASSERT_DONE(m.range_of(chunk_number(5, 0)));
}

}  // namespace
}  // namespace stillmap::migration::testing
