// Publishing: what a publisher is told, and what its memory is like afterwards, when the holder or the publisher
// itself fails around the commit.
#include "stillmap/checkpoint/publication/publication.h"

#include "tests/checkpoint/publication/fixture.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;

using publish_test = publication_fixture;

// Regression: the holder had published it, and the publisher did not learn which generation it was.
TEST_F(publish_test, stopping_after_the_commit_is_too_late) {
  const growable_buffer one = exportable(2, "one", 1);
  std::stop_source stop;
  publish_options options;
  options.cancel = stop.get_token();
  options.on_step = [&](step s) {
    if (s == step::committed) stop.request_stop();
  };
  const auto published = publish_tag("model", "one", options);
  ASSERT_DONE(published);
  EXPECT_EQ(published->generation, 1U);
}

// Regression: names of fewer than four characters could not be listed.
TEST_F(publish_test, any_name_can_be_listed) {
  const growable_buffer one = exportable(1, "one", 1);
  std::size_t n = 0;
  for (const std::string &name :
       {std::string("m"), std::string("\xc3\xa4"), std::string(255, 'n')}) {
    const growable_buffer memory = exportable(1, name.c_str(), 1);
    ASSERT_DONE(publish_tag(name, name.c_str()));
    const auto all = list(address_);
    ASSERT_DONE(all);
    EXPECT_EQ(all->size(), ++n);
  }
}

TEST_F(publish_test, stopping_before_the_commit_changes_nothing) {
  const growable_buffer one = exportable(2, "one", 1);
  for (const holder_step at : {holder_step::publish_received, holder_step::pages_received}) {
    std::stop_source stop;
    holder_options told;
    told.on_step = [&](holder_step s) {
      if (s == at) stop.request_stop();
    };
    start(std::move(told));
    publish_options options;
    options.cancel = stop.get_token();
    EXPECT_TRUE(fails_with(outcome(publish_tag("model", "one", options)), errc::operation_canceled,
                           "publication::publish"));
    EXPECT_TRUE(can_write(one.address()));
    EXPECT_TRUE(holder_->publications().empty());
    holder_.reset();
  }
}

}  // namespace
}  // namespace stillmap::publication::testing
