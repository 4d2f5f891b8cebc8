// Attached memory in snapshots, handoffs and layouts: referred to by name and id, not copied.
#include <gtest/gtest.h>

#include <filesystem>

#include "stillmap/checkpoint/common/layout_wire.h"
#include "stillmap/checkpoint/snapshot/restore_contents.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/checkpoint/publication/fixture.h"
#include "tests/support/far_away.h"

namespace stillmap::publication::testing {
namespace {

// A task with memory of its own, tag "own", and attached weights, tag "weights", which it has elsewhere than their
// publisher.
class references_test : public publication_fixture {
 protected:
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    {
      const growable_buffer weights = exportable(3, "weights", 1);
      ASSERT_DONE(publish_tag("model", "weights"));
    }
    // Both come back to their addresses, which nothing else may take meanwhile.
    attach_options options;
    options.addresses = {device_address(weights_at)};
    auto read = attach(dev(), address_, "model", options);
    ASSERT_DONE(read);
    weights_.emplace(std::move(*read));
    own_.emplace(exportable(2, "own", 2, own_at));
    at_ = weights_->tagged("weights")[0];
  }
  void TearDown() override {
    end_task();
    publication_fixture::TearDown();
  }
  // The task has ended, and its addresses are free.
  void end_task() {
    weights_.reset();
    own_.reset();
  }

  static constexpr std::uint64_t weights_at = stillmap::testing::far_away,
                                 own_at = stillmap::testing::far_away + 0x10'0000'0000;
  const std::vector<std::string> both_{"weights", "own"};
  const std::string path_ =
      ::testing::TempDir() + stillmap::testing::unique_name("references") + ".smi";
  std::optional<attached_memory> weights_;
  std::optional<growable_buffer> own_;
  virtual_range at_;
};

TEST_F(references_test, a_snapshot_refers_to_published_memory) {
  ASSERT_DONE(snapshot::save(dev(), both_, path_));
  {
    // Keeps the generation when a newer one comes.
    const auto other = attach_elsewhere();
    ASSERT_DONE(other);
    const growable_buffer newer = exportable(1, "newer", 9);
    end_task();
    ASSERT_DONE(publish_tag("model", "newer"));
    const auto restored = snapshot::restore(dev(), path_);
    ASSERT_DONE(restored);
    EXPECT_EQ(restored->memory.bytes(), 2 * page());
    EXPECT_TRUE(restored->notes.empty());
    const auto &references = restored->memory.layout().published;
    ASSERT_EQ(references.size(), 1U);
    EXPECT_EQ(references[0].range, at_);
    EXPECT_EQ(references[0].name, "model");
    const auto again = attach(dev(), address_, references);
    ASSERT_DONE(again);
    ASSERT_EQ(again->size(), 1U);
    EXPECT_EQ(again->front().tagged("weights")[0], at_);
    EXPECT_TRUE(holds(dev(), at_.begin, 3 * page(), 1));
  }
  std::filesystem::remove(path_);
}

TEST_F(references_test, a_snapshot_of_attached_memory_alone_has_no_contents) {
  ASSERT_DONE(snapshot::save(dev(), std::vector<std::string>{"weights"}, path_));
  end_task();
  snapshot::restore_options one_tag;
  one_tag.tags = {"weights"};
  const auto restored = snapshot::restore(dev(), path_, one_tag);
  ASSERT_DONE(restored);
  EXPECT_EQ(restored->memory.bytes(), 0U);
  EXPECT_EQ(restored->memory.layout().published.size(), 1U);
  std::filesystem::remove(path_);
}

TEST_F(references_test, a_snapshot_copies_it_where_it_is_asked_to) {
  snapshot::save_options options;
  options.published = checkpoint::published_memory_is::copied;
  ASSERT_DONE(snapshot::save(dev(), both_, path_, options));
  end_task();
  const auto restored = snapshot::restore(dev(), path_);
  ASSERT_DONE(restored);
  EXPECT_TRUE(restored->memory.layout().published.empty());
  EXPECT_EQ(restored->memory.bytes(), 5 * page());
  EXPECT_TRUE(holds(dev(), at_.begin, 3 * page(), 1));
  std::filesystem::remove(path_);
}

TEST_F(references_test, private_copies_are_not_left_out_silently) {
  const stream s = make_stream();
  ASSERT_DONE(weights_->make_writable({at_.begin + page(), 1}, s));
  const auto refused = outcome(snapshot::save(dev(), both_, path_));
  EXPECT_TRUE(
      fails_with(refused, errc::not_supported, "snapshot::save", at_.begin.value() + page(), 0));
  snapshot::save_options options;
  options.published = checkpoint::published_memory_is::copied;
  ASSERT_DONE(snapshot::save(dev(), both_, path_, options));
  std::filesystem::remove(path_);
}

TEST_F(references_test, contents_are_restored_beside_published_memory_that_is_attached) {
  ASSERT_DONE(snapshot::save(dev(), both_, path_));
  stillmap::testing::put(dev(), own_->address(), stillmap::testing::pattern(2 * page(), 9));
  const auto restored = snapshot::restore_contents(dev(), path_);
  ASSERT_DONE(restored);
  EXPECT_EQ(restored->bytes, 2 * page());
  EXPECT_TRUE(holds(dev(), own_->address(), 2 * page(), 2));
  const auto refused = [&](errc why, std::uint64_t at) {
    stillmap::testing::put(dev(), own_->address(), stillmap::testing::pattern(2 * page(), 9));
    const auto no = snapshot::restore_contents(dev(), path_);
    ASSERT_FALSE(no);
    EXPECT_TRUE(no.error().is(why)) << no.error().message();
    EXPECT_EQ(no.error().value, at) << no.error().message();
    EXPECT_TRUE(holds(dev(), own_->address(), 2 * page(), 9));
  };
  const stream s = make_stream();
  ASSERT_DONE(weights_->make_writable({at_.begin + page(), 1}, s));
  refused(errc::not_supported, at_.begin.value() + page());
  weights_.reset();
  refused(errc::invalid_argument, at_.begin.value());
  // Its own memory alone.
  snapshot::restore_contents_options own;
  own.tags = {"own"};
  ASSERT_DONE(snapshot::restore_contents(dev(), path_, own));
  EXPECT_TRUE(holds(dev(), own_->address(), 2 * page(), 2));
  std::filesystem::remove(path_);
}

TEST_F(references_test, the_name_of_its_note_is_reserved) {
  snapshot::save_options options;
  options.notes = {{snapshot::published_note, {}}};
  EXPECT_TRUE(fails_with(outcome(snapshot::save(dev(), both_, path_, options)),
                         errc::invalid_argument, "snapshot::save"));
}

TEST_F(references_test, a_layout_carries_the_references_to_a_receiver) {
  const auto described = checkpoint::describe(dev(), both_);
  ASSERT_DONE(described);
  const auto bytes = checkpoint::encode(described->layout);
  const auto arrived = checkpoint::decode_layout(bytes);
  ASSERT_DONE(arrived);
  EXPECT_EQ(arrived->published, described->layout.published);
  ASSERT_DONE(check(*arrived, page()));
  checkpoint::memory_layout wrong = *arrived;
  wrong.published[0].range.begin = wrong.blocks[0].range.begin;
  EXPECT_TRUE(fails_with(check(wrong, page()), errc::corrupt, "checkpoint::check"));
  wrong = *arrived;
  wrong.published[0].range.bytes -= 1;
  EXPECT_TRUE(fails_with(check(wrong, page()), errc::corrupt, "checkpoint::check"));
}

// Its publisher refers to it as its readers do, from the commit on.
TEST_F(references_test, a_publisher_refers_to_its_own_memory) {
  const growable_buffer mine = exportable(1, "mine", 3);
  std::stop_source stop;
  publish_options options;
  options.cancel = stop.get_token();
  options.on_step = [&](step s) {
    if (s == step::pages_sent) stop.request_stop();
  };
  EXPECT_FALSE(publish_tag("mine", "mine", options));
  const std::vector<std::string> tags{"mine"};
  EXPECT_TRUE(checkpoint::describe(dev(), tags)->layout.published.empty());
  const auto published = publish_tag("mine", "mine");
  ASSERT_DONE(published);
  const auto described = checkpoint::describe(dev(), tags);
  ASSERT_DONE(described);
  EXPECT_TRUE(described->layout.blocks.empty());
  ASSERT_EQ(described->layout.published.size(), 1U);
  EXPECT_EQ(described->layout.published[0].name, "mine");
  EXPECT_EQ(described->layout.published[0].id.bytes, published->id.bytes);
}

// A block that has nothing but copies is this process's own.
TEST_F(references_test, memory_that_was_copied_as_a_whole_is_no_reference) {
  const stream s = make_stream();
  ASSERT_DONE(weights_->make_writable(at_, s));
  const auto described = checkpoint::describe(dev(), std::vector<std::string>{"weights"});
  ASSERT_DONE(described);
  EXPECT_TRUE(described->layout.published.empty());
  EXPECT_EQ(described->layout.pages.size(), 3U);
}

TEST_F(references_test, a_publication_contains_no_other) {
  manifest m = weights_->published();
  ASSERT_DONE(decode_manifest(encode(m)));
  m.layout.published = checkpoint::describe(dev(), both_)->layout.published;
  m.layout.published[0].range.begin = m.layout.blocks.back().range.end() + 64 * page();
  EXPECT_TRUE(fails_with(outcome(decode_manifest(encode(m))), errc::corrupt,
                         "publication::decode_manifest", 1, 0));
}

TEST_F(references_test, what_is_not_there_any_more_is_an_error) {
  const auto described = checkpoint::describe(dev(), both_);
  ASSERT_DONE(described);
  auto references = described->layout.published;
  end_task();
  ASSERT_DONE(withdraw(address_, "model"));
  EXPECT_TRUE(fails_with(outcome(attach(dev(), address_, references)), errc::invalid_argument,
                         "publication::attach"));
  references[0].block = UINT32_MAX;
  EXPECT_TRUE(fails_with(outcome(attach(dev(), address_, references)), errc::invalid_argument,
                         "publication::attach"));
}

TEST_F(references_test, attached_memory_cannot_be_published_or_suspended) {
  EXPECT_TRUE(fails_with(outcome(publish_tag("again", "weights")), errc::not_supported,
                         "publication::publish", at_.begin.value(), 0));
  auto suspends = checkpoint::suspender::create(dev());
  ASSERT_DONE(suspends);
  EXPECT_TRUE(fails_with(outcome((*suspends)->suspend("weights")), errc::not_supported,
                         "suspender::suspend", at_.begin.value(), 0));
}

}  // namespace
}  // namespace stillmap::publication::testing
