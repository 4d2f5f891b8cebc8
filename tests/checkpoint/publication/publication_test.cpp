// Published memory in one process: what readers see, generations, private copies, digests, claims, and
// requests that are refused.
#include "stillmap/checkpoint/publication/publication.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/reservation.h"
#include "tests/checkpoint/publication/fixture.h"
#include "tests/support/sample_task.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using namespace stillmap::testing::sample;

using publication_test = publication_fixture;

TEST_F(publication_test, readers_share_the_pages_and_cannot_write) {
  task t(dev());
  const std::string words = "tensors";
  publish_options options;
  options.metadata = std::as_bytes(std::span(words));
  const auto published = publish(dev(), address_, "model", both, options);
  ASSERT_DONE(published);
  EXPECT_EQ(published->pages, 6U);
  EXPECT_EQ(published->bytes, 6 * page());
  EXPECT_FALSE(published->id.is_zero());
  EXPECT_FALSE(can_write(device_address(weights_at)));
  EXPECT_TRUE(can_write(device_address(other_at)));  // was not published
  const driver_counts before = counts();
  const std::size_t used = dev().memory()->free.bytes();
  auto first = attach_elsewhere(), second = attach_elsewhere();
  ASSERT_DONE(first);
  ASSERT_DONE(second);
  const driver_counts spent = counts() - before;
  EXPECT_EQ(spent.bytes_on_device + spent.bytes_to_device + spent.bytes_to_host, 0U);
  EXPECT_EQ(dev().memory()->free.bytes(), used);
  EXPECT_EQ(readers_of(published->generation), 2U);
  for (const attached_memory *const m : {&*first, &*second}) {
    EXPECT_EQ(m->generation(), published->generation);
    EXPECT_EQ(m->shared_bytes(), 6 * page());
    EXPECT_EQ(m->published().id(), published->id);
    EXPECT_EQ(std::memcmp(m->published().metadata.data(), words.data(), words.size()), 0);
    const auto weights = m->tagged("weights"), cache = m->tagged("cache");
    ASSERT_EQ(weights.size() + cache.size(), 2U);
    EXPECT_TRUE(holds(dev(), cache[0].begin, page(), 5));
    EXPECT_TRUE(holds(dev(), cache[0].begin + page(), page(), 6));
    EXPECT_TRUE(holds(dev(), weights[0].begin + 3 * page(), page(), 3));
    // The alias is the same page.
    EXPECT_EQ(get(dev(), weights[0].begin, page()),
              get(dev(), weights[0].begin + 5 * page(), page()));
    EXPECT_FALSE(can_write(cache[0].begin));
  }
}

TEST_F(publication_test, pages_outlive_their_publisher_and_are_not_reused) {
  std::optional<growable_buffer> weights(exportable(4, "weights", 3));
  const auto pool = dev().space().mappings({weights->address(), page()})[0].backing.pool();
  const std::vector<std::string> tags{"weights"};
  ASSERT_DONE(publish(dev(), address_, "model", tags));
  weights.reset();
  EXPECT_EQ(pool->stats().created.bytes(), 0U);  // none stays in the pool
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  EXPECT_TRUE(holds(dev(), read->tagged("weights")[0].begin, 4 * page(), 3));
}

TEST_F(publication_test, a_generation_stays_with_its_readers) {
  const growable_buffer one = exportable(2, "one", 1), two = exportable(3, "two", 2);
  const auto first = publish(dev(), address_, "model", std::vector<std::string>{"one"});
  ASSERT_DONE(first);
  auto old = attach_elsewhere();
  ASSERT_DONE(old);
  const auto second = publish(dev(), address_, "model", std::vector<std::string>{"two"});
  ASSERT_DONE(second);
  EXPECT_GT(second->generation, first->generation);
  auto now = attach_elsewhere();
  ASSERT_DONE(now);
  EXPECT_EQ(now->generation(), second->generation);
  EXPECT_TRUE(holds(dev(), now->tagged("two")[0].begin, 3 * page(), 2));
  {
    attach_options options = elsewhere();
    options.generation = first->generation;
    auto again = attach(dev(), address_, "model", options);
    ASSERT_DONE(again);
    EXPECT_TRUE(holds(dev(), again->tagged("one")[0].begin, 2 * page(), 1));
  }
  const auto all = list(address_);
  ASSERT_DONE(all);
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ((*all)[0].name, "model");
  EXPECT_FALSE((*all)[0].newest);
  EXPECT_EQ((*all)[0].bytes, 2 * page());
  EXPECT_TRUE((*all)[1].newest);
  EXPECT_EQ((*all)[1].publisher, ::getpid());
  old = std::move(now);  // its last reader leaves
  now = tl::unexpected(error());
  EXPECT_TRUE(eventually([&] { return holder_->publications().size() == 1; }));
  attach_options options = elsewhere();
  options.generation = first->generation;
  EXPECT_FALSE(attach(dev(), address_, "model", options));
}

TEST_F(publication_test, what_is_withdrawn_goes_with_its_last_reader) {
  const growable_buffer one = exportable(2, "one", 1);
  const auto published = publish(dev(), address_, "model", std::vector<std::string>{"one"});
  ASSERT_DONE(published);
  {
    auto read = attach_elsewhere();
    ASSERT_DONE(read);
    const auto gone = withdraw(address_, "model");
    ASSERT_DONE(gone);
    EXPECT_EQ(*gone, published->generation);
    EXPECT_FALSE(attach_elsewhere());
    EXPECT_EQ(readers_of(*gone), 1U);
    EXPECT_TRUE(holds(dev(), read->tagged("one")[0].begin, 2 * page(), 1));
  }
  EXPECT_TRUE(eventually([&] { return holder_->publications().empty(); }));
  EXPECT_TRUE(fails_with(outcome(withdraw(address_, "model")), errc::invalid_argument,
                         "publication::withdraw"));
}

TEST_F(publication_test, one_page_is_copied_for_a_reader_that_writes) {
  task t(dev());
  ASSERT_DONE(publish(dev(), address_, "model", both));
  auto writer = attach_elsewhere(), reader = attach_elsewhere();
  ASSERT_DONE(writer);
  ASSERT_DONE(reader);
  const device_address cache = writer->tagged("cache")[0].begin;
  const stream s = make_stream();
  const driver_counts before = counts();
  ASSERT_DONE(writer->make_writable({cache + 8, 16}, s));
  EXPECT_EQ((counts() - before).bytes_on_device, page());
  EXPECT_EQ(writer->private_bytes(), page());
  EXPECT_EQ(writer->shared_bytes(), 5 * page());
  EXPECT_TRUE(holds(dev(), cache, page(), 5));
  put(dev(), cache, pattern(page(), 50));
  EXPECT_FALSE(can_write(cache + page()));
  EXPECT_TRUE(holds(dev(), reader->tagged("cache")[0].begin, page(), 5));
  EXPECT_TRUE(holds(dev(), device_address(cache_at), page(), 5));
  // Again: nothing is left to do.
  const driver_counts again = counts();
  ASSERT_DONE(writer->make_writable({cache + 8, 16}, s));
  EXPECT_EQ((counts() - again).bytes_on_device, 0U);
  // A page with two addresses is private at both; the hole beside it is none.
  const device_address weights = writer->tagged("weights")[0].begin;
  ASSERT_DONE(writer->make_writable({weights, 3 * page()}, s));
  put(dev(), weights + 5 * page(), pattern(64, 51));
  EXPECT_TRUE(holds(dev(), weights, 64, 51));
  EXPECT_EQ(writer->private_bytes(), 3 * page());
  EXPECT_TRUE(fails_with(writer->make_writable({weights, 17 * page()}, s), errc::invalid_argument,
                         "attached_memory::make_writable", weights.value(), 0));
}

TEST_F(publication_test, contents_are_compared_with_their_digests) {
  const growable_buffer one = exportable(3, "one", 1);
  ASSERT_DONE(publish(dev(), address_, "model", std::vector<std::string>{"one"}));
  attach_options options = elsewhere();
  options.verify = true;
  ASSERT_DONE(attach(dev(), address_, "model", options));
  // A process that does not keep to it maps a page for writing.
  const auto pages = dev().space().mappings({one.address(), 3 * page()});
  auto room = reservation::create(dev(), page());
  ASSERT_DONE(room);
  auto window = mapping::create(*room, 0, pages[1].backing,
                                {{on_device(dev().ordinal()), access_mode::read_write}});
  ASSERT_DONE(window);
  put(dev(), room->range().begin + 100, {42});
  const auto damaged = attach(dev(), address_, "model", options);
  ASSERT_FALSE(damaged);
  EXPECT_TRUE(damaged.error().is(errc::corrupt)) << damaged.error().message();
  EXPECT_EQ(damaged.error().value % page(), 0U);
  EXPECT_EQ(dev().space().stats().live_mappings, 4U);  // nothing of it is left
}

TEST_F(publication_test, without_digests_there_is_nothing_to_compare) {
  const growable_buffer one = exportable(1, "one", 1);
  publish_options no_digests;
  no_digests.digests = false;
  const auto published =
      publish(dev(), address_, "model", std::vector<std::string>{"one"}, no_digests);
  ASSERT_DONE(published);
  EXPECT_TRUE(published->id.is_zero());
  attach_options options = elsewhere();
  EXPECT_TRUE(attach(dev(), address_, "model", options));
  options.verify = true;
  EXPECT_TRUE(fails_with(outcome(attach(dev(), address_, "model", options)), errc::not_supported,
                         "publication::attach"));
}

TEST_F(publication_test, one_of_those_that_ask_is_told_to_publish) {
  const growable_buffer one = exportable(1, "one", 1);
  attach_options options = elsewhere();
  options.wait = 60s;
  auto first = attach_or_claim(dev(), address_, "model", options);
  ASSERT_DONE(first);
  ASSERT_TRUE(std::holds_alternative<claim>(*first));
  result<std::variant<attached_memory, claim>> second = tl::unexpected(error());
  std::thread other([&] { second = attach_or_claim(dev(), address_, "model", options); });
  ASSERT_DONE(std::move(std::get<claim>(*first)).publish(dev(), std::vector<std::string>{"one"}));
  other.join();
  ASSERT_DONE(second);
  ASSERT_TRUE(std::holds_alternative<attached_memory>(*second));
  EXPECT_TRUE(holds(dev(), std::get<attached_memory>(*second).tagged("one")[0].begin, page(), 1));
}

TEST_F(publication_test, a_claim_that_is_given_up_goes_to_the_next) {
  attach_options options = elsewhere();
  options.wait = 60s;
  auto first = attach_or_claim(dev(), address_, "model", options);
  ASSERT_DONE(first);
  result<std::variant<attached_memory, claim>> second = tl::unexpected(error());
  std::thread other([&] { second = attach_or_claim(dev(), address_, "model", options); });
  first = tl::unexpected(error());
  other.join();
  ASSERT_DONE(second);
  EXPECT_TRUE(std::holds_alternative<claim>(*second));
  options.wait = 20ms;
  EXPECT_TRUE(fails_with(outcome(attach_or_claim(dev(), address_, "model", options)), errc::busy,
                         "publication::attach_or_claim", 20, 0));
}

TEST_F(publication_test, a_failure_before_the_commit_changes_nothing) {
  task t(dev());
  for (const step at : {step::connected, step::sealed, step::manifest_sent, step::pages_sent}) {
    SCOPED_TRACE(name_of(at));
    std::stop_source stop;
    publish_options options;
    options.cancel = stop.get_token();
    options.on_step = [&](step s) {
      if (s == at) stop.request_stop();
    };
    EXPECT_TRUE(fails_with(outcome(publish(dev(), address_, "model", both, options)),
                           errc::operation_canceled, "publication::publish"));
    EXPECT_TRUE(can_write(device_address(weights_at + page())));
    EXPECT_FALSE(can_write(device_address(cache_at + page())));  // was read-only before
    put(dev(), device_address(weights_at + page()), pattern(page(), 2));
  }
  EXPECT_TRUE(holder_->publications().empty());
  ASSERT_DONE(publish(dev(), address_, "model", both));
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(publication_test, wrong_requests_name_what_is_wrong) {
  task t(dev());
  const growable_buffer own = filled(1, "own", 1);  // not exportable
  const auto published = [&](const std::string &name, const char *tag) {
    return outcome(publish(dev(), address_, name, std::vector<std::string>{tag}));
  };
  const char *const what = "publication::publish";
  EXPECT_TRUE(fails_with(published("", "weights"), errc::invalid_argument, what));
  EXPECT_TRUE(fails_with(published("a\nb", "weights"), errc::invalid_argument, what));
  EXPECT_TRUE(fails_with(published(std::string(256, 'a'), "weights"), errc::invalid_argument, what,
                         256, 255));
  EXPECT_TRUE(fails_with(published("model", "none"), errc::invalid_argument, what));
  EXPECT_TRUE(
      fails_with(published("model", "own"), errc::not_supported, what, own.address().value(), 0));
  EXPECT_TRUE(
      fails_with(outcome(attach_elsewhere()), errc::invalid_argument, "publication::attach"));
  const auto nobody = outcome(attach(dev(), address_ + "-not", "model"));
  ASSERT_FALSE(nobody);
  EXPECT_NE(nobody.error().message().find(address_ + "-not"), std::string::npos);
  ASSERT_TRUE(published("model", "weights"));
  // The addresses are this process's own.
  const auto taken = outcome(attach(dev(), address_, "model"));
  EXPECT_TRUE(fails_with(taken, errc::busy, "publication::attach"));
  EXPECT_EQ(taken.error().value, weights_at);
  EXPECT_TRUE(fails_with(published("again", "weights"), errc::not_supported, what));
  attach_options options = elsewhere();
  options.allow = [](const checkpoint::peer_credentials &) { return false; };
  EXPECT_TRUE(fails_with(outcome(attach(dev(), address_, "model", options)), errc::not_supported,
                         "publication::attach", ::getuid(), 0));
}

TEST_F(publication_test, readers_keep_the_memory_when_the_holder_ends) {
  const growable_buffer one = exportable(2, "one", 1);
  ASSERT_DONE(publish(dev(), address_, "model", std::vector<std::string>{"one"}));
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  holder_.reset();
  EXPECT_TRUE(holds(dev(), read->tagged("one")[0].begin, 2 * page(), 1));
  const stream s = make_stream();
  ASSERT_DONE(read->make_writable(read->tagged("one")[0], s));
  EXPECT_TRUE(can_write(read->tagged("one")[0].begin));
}

}  // namespace
}  // namespace stillmap::publication::testing
