// Memory that is attached: when its lease ends, and what of it may be made writable.
#include "stillmap/checkpoint/publication/attached_memory.h"

#include "stillmap/vmm/reservation.h"
#include "tests/checkpoint/publication/fixture.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;

using attached_memory_test = publication_fixture;

// Regression: the lease ended with the object only.
TEST_F(attached_memory_test, release_unmaps_everything_and_ends_the_lease) {
  const growable_buffer one = exportable(2, "one", 1);
  const auto published = publish_tag("model", "one");
  ASSERT_DONE(published);
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  EXPECT_EQ(readers_of(published->generation), 1U);
  ASSERT_DONE(read->release(fence()));
  EXPECT_TRUE(eventually([&] { return readers_of(published->generation) == 0; }));
  EXPECT_EQ(dev().space().stats().live_blocks, 1U);
  // Again: nothing is left to do.
  EXPECT_TRUE(read->release(fence()));
}

// Regression: pages that other memory had at these addresses by then were exchanged.
TEST_F(attached_memory_test, released_memory_cannot_be_made_writable) {
  const growable_buffer one = exportable(2, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  const virtual_range range = read->tagged("one")[0];
  ASSERT_DONE(read->release(fence()));
  reservation_options again;
  again.hint = range.begin;
  const auto room = reservation::create(dev(), range.bytes, again);
  ASSERT_DONE(room);
  const stream s = make_stream();
  EXPECT_TRUE(fails_with(read->make_writable({range.begin, page()}, s), errc::invalid_argument,
                         "attached_memory::make_writable"));
  EXPECT_EQ(read->shared_bytes(), 0U);
  EXPECT_EQ(read->private_bytes(), 0U);
}

// Regression: a range that ends behind the last address was inside every block.
TEST_F(attached_memory_test, a_range_must_be_inside_one_block) {
  const growable_buffer one = exportable(2, "one", 1), two = exportable(1, "two", 2);
  ASSERT_DONE(publish(dev(), address_, "model", std::vector<std::string>{"one", "two"}));
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  const virtual_range range = read->tagged("one")[0];
  const stream s = make_stream();
  for (const virtual_range wrong :
       {virtual_range{range.begin, SIZE_MAX}, virtual_range{range.begin + 1, SIZE_MAX},
        virtual_range{range.begin, range.bytes + 1}, virtual_range{range.end(), 1},
        virtual_range{device_address(8), 8}, virtual_range{range.begin + (range.bytes - 1), 2}}) {
    EXPECT_TRUE(fails_with(read->make_writable(wrong, s), errc::invalid_argument,
                           "attached_memory::make_writable", wrong.begin.value(), 0));
  }
  EXPECT_EQ(read->private_bytes(), 0U);
  ASSERT_DONE(read->make_writable({range.begin, 0}, s));
  ASSERT_DONE(read->make_writable({range.begin + (range.bytes - 1), 1}, s));
}

// Regression: the time was cut off to 32 bits, and overflowed a clock.
TEST_F(attached_memory_test, a_wait_may_be_of_any_length) {
  const growable_buffer one = exportable(1, "one", 1);
  for (const std::chrono::milliseconds wait :
       {std::chrono::milliseconds(std::int64_t{1} << 32), std::chrono::milliseconds::max()}) {
    SCOPED_TRACE(wait.count());
    const std::string name = "model" + std::to_string(wait.count());
    attach_options options = elsewhere();
    options.wait = wait;
    result<attached_memory> read = tl::unexpected(error());
    std::thread waiting([&] { read = attach(dev(), address_, name, options); });
    std::this_thread::sleep_for(20ms);
    const growable_buffer again = exportable(1, name.c_str(), 2);
    EXPECT_TRUE(publish_tag(name, name.c_str()));
    waiting.join();
    EXPECT_TRUE(read) << read.error().message();
  }
  attach_options options = elsewhere();
  options.wait = std::chrono::milliseconds::min();
  EXPECT_TRUE(fails_with(outcome(attach(dev(), address_, "none", options)), errc::invalid_argument,
                         "publication::attach"));
  // The same for each message.
  options.wait = 0ms;
  options.timeout = std::chrono::milliseconds::max();
  EXPECT_TRUE(fails_with(outcome(attach(dev(), address_, "none", options)), errc::invalid_argument,
                         "publication::attach"));
}

// A client that waits notices that the holder ends.
TEST_F(attached_memory_test, a_wait_ends_with_the_holder) {
  attach_options options = elsewhere();
  options.wait = 10min;
  auto claimed = attach_or_claim(dev(), address_, "claimed", options);
  ASSERT_DONE(claimed);
  result<attached_memory> read = tl::unexpected(error());
  result<std::variant<attached_memory, claim>> second = tl::unexpected(error());
  std::thread waiting([&] { read = attach(dev(), address_, "model", options); });
  std::thread claiming([&] { second = attach_or_claim(dev(), address_, "claimed", options); });
  std::this_thread::sleep_for(50ms);
  holder_.reset();
  waiting.join();
  claiming.join();
  EXPECT_TRUE(fails_with(outcome(read), errc::operation_canceled, "publication::attach"));
  EXPECT_TRUE(
      fails_with(outcome(second), errc::operation_canceled, "publication::attach_or_claim"));
  const growable_buffer one = exportable(1, "one", 1);
  EXPECT_FALSE(
      std::move(std::get<claim>(*claimed)).publish(dev(), std::vector<std::string>{"one"}));
  EXPECT_TRUE(can_write(one.address()));
}

TEST_F(attached_memory_test, a_wait_can_be_canceled) {
  std::stop_source stop;
  attach_options options = elsewhere();
  options.wait = 10min;
  options.cancel = stop.get_token();
  result<attached_memory> read = tl::unexpected(error());
  std::thread waiting([&] { read = attach(dev(), address_, "model", options); });
  stop.request_stop();
  waiting.join();
  EXPECT_TRUE(fails_with(outcome(read), errc::operation_canceled, "publication::attach"));
}

// Blocks without a page are addresses only, which readers reserve.
TEST_F(attached_memory_test, memory_without_a_page_is_addresses) {
  reservation_options options;
  options.tag = "empty";
  const auto room = reservation::create(dev(), 4 * page(), options);
  ASSERT_DONE(room);
  const auto published = publish_tag("model", "empty");
  ASSERT_DONE(published);
  EXPECT_EQ(published->pages, 0U);
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  ASSERT_EQ(read->tagged("empty").size(), 1U);
  EXPECT_EQ(read->tagged("empty")[0].bytes, 4 * page());
  const stream s = make_stream();
  ASSERT_DONE(read->make_writable(read->tagged("empty")[0], s));
}

}  // namespace
}  // namespace stillmap::publication::testing
