// Who owns a task after a lost reply: over two hops, with another machine's answers, with another or
// an older directory of records, and with a disk that fails.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "stillmap/checkpoint/base/file_system.h"
#include "tests/checkpoint/migration/commit_only_transport.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using namespace stillmap::testing::sample;
namespace fs = std::filesystem;

// A disk that can be broken: a rename is done, its directory cannot be synced, and the rename cannot
// be undone.
class breakable_disk final : public checkpoint::file_system {
 public:
  void break_at_next_rename() { renames_left_ = 1; }
  void mend() { renames_left_ = whole; }

  int rename_at(int d, const char *from, const char *to, unsigned flags) override {
    if (renames_left_ == 0) return -EIO;
    if (renames_left_ != whole) --renames_left_;
    return checkpoint::file_system::rename_at(d, from, to, flags);
  }
  int unlink_at(int d, const char *name) override {
    return renames_left_ == whole ? checkpoint::file_system::unlink_at(d, name) : -EIO;
  }
  int sync(int fd) override {
    return renames_left_ == whole ? checkpoint::file_system::sync(fd) : -EIO;
  }

 private:
  static constexpr int whole = -1;
  int renames_left_ = whole;
};

class disputed : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (part() == "keeps") keeps("destination");
    if (part() == "keeps third") keeps("third");
    if (part() == "sends on") sends_on("destination", "third");
    if (part() == "sends back") sends_on("third", "destination");
    if (part() == "resolves") resolves();
  }

  // Receives the task and runs it until this process is killed.
  [[noreturn]] void keeps(const char *end) {
    const test_site m(meeting_place());
    auto at = receiver::create(dev(), acceptor_at(m, end), destination_options(m, end));
    if (!at) say_and_end(at.error().message());
    const auto came = at->receive(std::chrono::milliseconds(60'000));
    if (!came) say_and_end(came.error().message());
    handoff::testing::say(0, "runs here, epoch " + std::to_string(came->epoch));
    std::this_thread::sleep_for(std::chrono::seconds(60));
    ::_exit(0);
  }

  // Receives the task, runs it, and sends it to another machine.
  [[noreturn]] void sends_on(const char *end, const char *other) {
    const test_site m(meeting_place());
    auto at = receiver::create(dev(), acceptor_at(m, end), destination_options(m, end));
    if (!at) say_and_end(at.error().message());
    std::optional<received_memory> came;
    {
      auto arrived = at->receive(std::chrono::milliseconds(60'000));
      if (!arrived) say_and_end(arrived.error().message());
      came.emplace(std::move(*arrived));
    }
    { const record_file closed = std::move(came->record); }
    const send_options options = source_options(m, end);
    const auto to = transport_between(m, end, other);
    sent_memory sent;
    // The other machine's process may still be starting.
    for (int i = 0; i < 100 && (i == 0 || sent.failure); ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      sent = sender(dev(), both, options).send(*to);
    }
    if (sent.failure) say_and_end(sent.failure->message());
    say_and_end("sent on, epoch " + std::to_string(sent.epoch));
  }

  // Another process of the source's machine, while the first one lives.
  [[noreturn]] void resolves() {
    const test_site m(meeting_place());
    const auto to = to_destination(m);
    const sent_memory sent = sender(dev(), {}, source_options(m)).resolve(*to);
    say_and_end(name_of_owner(sent) + (sent.failure ? ": " + sent.failure->message() : ""));
  }

  // The source's commit arrives, and the reply does not.
  void lose_the_reply(sender &from, const test_site &m) {
    lossy_.emplace(to_destination(m));
    const sent_memory sent = from.send(*lossy_);
    ASSERT_EQ(sent.owner, owner::in_doubt) << (sent.failure ? sent.failure->message() : "");
  }
  // The same, and the destination sends the task to the third machine, and ends.
  void lose_the_reply_and_send_on(sender &from, const test_site &m) {
    other_process second("sends on", m.folder());
    lose_the_reply(from, m);
    ASSERT_EQ(second.verdict(), "sent on, epoch 3");
  }

  std::optional<commit_only_transport> lossy_;  // outlives the sender, which keeps its channels

  static std::string name_of_owner(const sent_memory &s) {
    if (s.owner == owner::source) note_event("kept", "source");
    return s.owner == owner::source        ? "source"
           : s.owner == owner::destination ? "destination"
                                           : "in doubt";
  }
};

// Regression: the destination's record named its own migration by then, so the answer was `refused`,
// and the task ran at the source and at the third machine.
TEST_F(disputed, a_source_that_asks_after_a_second_hop_has_sent_the_task) {
  const test_site m;
  task t(dev());
  other_process third("keeps third", m.folder());
  sender from(dev(), both, source_options(m));
  lose_the_reply_and_send_on(from, m);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(third.said(0), "runs here, epoch 3");
  auto again = receiver::create(dev(), at_destination(m), destination_options(m));
  ASSERT_TRUE(again) << again.error().message();
  const sent_memory resolved = from.resolve(*to_destination(m));
  EXPECT_EQ(name_of_owner(resolved), "destination");
}

// Regression, found by docs/models/migration.pml: the process that runs the task holds its record, so
// a source that asked about an earlier transfer was told that the record is busy, for ever.
TEST_F(disputed, a_source_that_asks_after_the_task_has_come_back_has_sent_it) {
  const test_site m;
  task t(dev());
  other_process third("sends back", m.folder());
  sender from(dev(), both, source_options(m));
  lose_the_reply_and_send_on(from, m);
  ASSERT_FALSE(HasFatalFailure());
  other_process again("keeps", m.folder());
  ASSERT_EQ(third.verdict(), "sent on, epoch 4");
  ASSERT_EQ(again.said(0), "runs here, epoch 4");
  const sent_memory resolved = from.resolve(*to_destination(m));
  EXPECT_EQ(name_of_owner(resolved), "destination")
      << (resolved.failure ? resolved.failure->message() : "");
}

// Regression: a receiver without a record of the migration answered `refused`.
TEST_F(disputed, a_receiver_with_another_directory_of_records_decides_nothing) {
  const test_site m;
  task t(dev());
  other_process there("keeps", m.folder());
  sender from(dev(), both, source_options(m));
  lose_the_reply(from, m);
  ASSERT_EQ(there.said(0), "runs here, epoch 2");
  fs::create_directory(m.records("empty"));
  auto elsewhere = create_tls_acceptor("127.0.0.1:0", m.of("destination"));
  ASSERT_TRUE(elsewhere);
  auto empty = receiver::create(dev(), std::move(*elsewhere), destination_options(m, "empty"));
  ASSERT_TRUE(empty) << empty.error().message();
  auto to_empty = create_tls_transport(empty->address(), m.of("source"));
  ASSERT_TRUE(to_empty);
  const sent_memory unknown = from.resolve(**to_empty);
  EXPECT_EQ(name_of_owner(unknown), "in doubt");
  ASSERT_TRUE(unknown.failure);
  EXPECT_TRUE(unknown.failure->is(errc::busy)) << unknown.failure->message();
  EXPECT_EQ(name_of_owner(from.resolve(*to_destination(m))), "destination");
}

// Regression: any trusted machine could answer. This one even has a copy of the records.
TEST_F(disputed, another_machine_with_a_copy_of_the_records_decides_nothing) {
  const test_site m;
  task t(dev());
  sender from(dev(), both, source_options(m));
  {
    other_process there("keeps", m.folder(), static_cast<int>(step::commit_received));
    lose_the_reply(from, m);
    ASSERT_EQ(there.verdict(), "killed");
    note_event("killed", "destination");
  }
  fs::copy(m.records("destination"), m.records("third"), fs::copy_options::overwrite_existing);
  auto third = receiver::create(dev(), acceptor_at(m, "third"), destination_options(m, "third"));
  ASSERT_TRUE(third) << third.error().message();
  const sent_memory unknown = from.resolve(*transport_between(m, "source", "third"));
  EXPECT_EQ(name_of_owner(unknown), "in doubt");
  ASSERT_TRUE(unknown.failure);
  EXPECT_TRUE(unknown.failure->is(errc::not_supported)) << unknown.failure->message();
  auto again = receiver::create(dev(), at_destination(m), destination_options(m));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(name_of_owner(from.resolve(*to_destination(m))), "source");
  EXPECT_EQ(task::wrong(dev()), "");
}

// Regression: the task ran at both machines under the same epoch. The older copy of the records says
// that the transfer never completed, so nothing can prevent the source from running the task; the
// epochs tell the two apart.
TEST_F(disputed, records_restored_from_an_older_copy_are_fenced_by_the_epoch) {
  const test_site m;
  task t(dev());
  other_process there("keeps", m.folder());
  send_options options = source_options(m);
  options.on_progress = [&](const progress &p) {
    if (p.step != step::verified) return;
    fs::copy(m.records("destination"), m.records("copy"));
  };
  sender from(dev(), both, options);
  lose_the_reply(from, m);
  ASSERT_EQ(there.said(0), "runs here, epoch 2");
  auto elsewhere = create_tls_acceptor("127.0.0.1:0", m.of("destination"));
  ASSERT_TRUE(elsewhere);
  auto restored = receiver::create(dev(), std::move(*elsewhere), destination_options(m, "copy"));
  ASSERT_TRUE(restored) << restored.error().message();
  auto to = create_tls_transport(restored->address(), m.of("source"));
  ASSERT_TRUE(to);
  const sent_memory resolved = from.resolve(**to);
  EXPECT_EQ(name_of_owner(resolved), "source");
  EXPECT_EQ(resolved.epoch, 1002u);
}

// Regression: the record with the intent was left unlocked on disk, so another process committed the
// transfer while the task went on at the source.
TEST_F(disputed, an_intent_that_cannot_be_taken_back_stays_locked) {
  const test_site m;
  task t(dev());
  other_process there("keeps", m.folder());
  const auto to = to_destination(m);
  breakable_disk disk;
  send_options options = source_options(m);
  options.files = &disk;
  bool resumed = false;
  options.quiesce = [] { return status(); };
  options.resume = [&] { resumed = true; };
  options.on_progress = [&](const progress &p) {
    if (p.step == step::verified) disk.break_at_next_rename();
  };
  {
    sender from(dev(), both, options);
    const sent_memory kept = from.send(*to);
    EXPECT_EQ(name_of_owner(kept), "source");
    ASSERT_TRUE(kept.failure);
    EXPECT_TRUE(kept.failure->code == std::errc::io_error) << kept.failure->message();
    EXPECT_TRUE(resumed);
  }
  EXPECT_EQ(task::wrong(dev()), "");
  expect_unreturnable();  // reported: the record cannot be written
  const auto records = list_records(options.records);
  ASSERT_TRUE(records && records->size() == 1 && (*records)[0].value);
  EXPECT_EQ((*records)[0].value->state, ownership::intent) << "the case that this test is about";
  EXPECT_TRUE((*records)[0].locked);
  {
    other_process other("resolves", m.folder());
    EXPECT_EQ(other.verdict().find("destination"), std::string::npos);
  }
  // This process cannot read it either, until the disk can be written again.
  const auto still = record_file::open(options.records, options.task, disk);
  ASSERT_FALSE(still);
  EXPECT_TRUE(still.error().code == std::errc::io_error) << still.error().message();
  disk.mend();
  options.on_progress = {};
  const sent_memory sent = sender(dev(), both, options).send(*to);
  EXPECT_EQ(name_of_owner(sent), "destination") << sent.failure->message();
  EXPECT_EQ(sent.epoch, 2u);
  EXPECT_EQ(there.said(0), "runs here, epoch 2");
}

}  // namespace
}  // namespace stillmap::migration::testing
