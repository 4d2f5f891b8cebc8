// The lock file of a record is deleted while a process holds it: another process can lock the record
// then. The task has one owner all the same, and is not lost.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/checkpoint/migration/commit_only_transport.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using namespace stillmap::testing::sample;
namespace fs = std::filesystem;

class deleted_lock : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (part() == "receives when told") receives_when_told();
  }

  // Owns the task once the commit has arrived, and takes it when the file "go" is there.
  [[noreturn]] void receives_when_told() {
    const test_site m(meeting_place());
    receive_options options = destination_options(m);
    options.on_step = [before = options.on_step](step s) {
      before(s);  // notes the step, before the other process can note what it does next
      if (s == step::ownership_recorded) handoff::testing::say(0, "owns it");
    };
    auto at = receiver::create(dev(), at_destination(m), options);
    if (!at) say_and_end(at.error().message());
    for (int i = 0; i < 6000 && !fs::exists(m.folder() + "/go"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const auto came = at->receive(std::chrono::milliseconds(30'000));
    handoff::testing::say(
        1, came ? "runs here, epoch " + std::to_string(came->epoch) : came.error().message());
    std::this_thread::sleep_for(std::chrono::seconds(60));
    ::_exit(0);
  }

  // The destination owns the task, the source is in doubt, and the lock file is gone.
  void be_in_doubt(sender &from, other_process &there, const test_site &m) {
    lossy_.emplace(to_destination(m));
    const sent_memory sent = from.send(*lossy_);
    ASSERT_EQ(sent.owner, owner::in_doubt) << (sent.failure ? sent.failure->message() : "");
    ASSERT_EQ(there.said(0), "owns it");
    ASSERT_TRUE(
        fs::remove(m.records("destination") + '/' + source_options(m).task.text() + ".lock"));
    note_event("lock deleted", "destination");
  }
  static void tell_to_receive(const test_site &m) { fs::create_directory(m.folder() + "/go"); }

  std::optional<commit_only_transport> lossy_;  // outlives the sender, which keeps its channels
};

// Regression: the second receiver locked the record, told the source that the task had never run
// here, and the first one ran it.
TEST_F(deleted_lock, a_task_that_a_second_receiver_has_refused_does_not_run) {
  const test_site m;
  task t(dev());
  other_process there("receives when told", m.folder());
  sender from(dev(), both, source_options(m));
  be_in_doubt(from, there, m);
  ASSERT_FALSE(HasFatalFailure());
  auto elsewhere = create_tls_acceptor("127.0.0.1:0", m.of("destination"));
  ASSERT_TRUE(elsewhere);
  auto second = receiver::create(dev(), std::move(*elsewhere), destination_options(m));
  ASSERT_TRUE(second) << second.error().message();
  auto to = create_tls_transport(second->address(), m.of("source"));
  ASSERT_TRUE(to);
  const sent_memory resolved = from.resolve(**to);
  ASSERT_EQ(resolved.owner, owner::source);
  note_event("kept", "source");
  EXPECT_EQ(resolved.epoch, 1002u);
  EXPECT_EQ(task::wrong(dev()), "");
  tell_to_receive(m);
  const std::string said = there.said(1);
  EXPECT_NE(said.find("the lock file was deleted"), std::string::npos) << said;
}

// Nor is the source told that the destination owns it.
TEST_F(deleted_lock, a_receiver_answers_by_the_record_that_another_has_changed) {
  const test_site m;
  task t(dev());
  other_process there("receives when told", m.folder());
  sender from(dev(), both, source_options(m));
  be_in_doubt(from, there, m);
  ASSERT_FALSE(HasFatalFailure());
  {
    auto other = record_file::open(m.records("destination"), source_options(m).task);
    ASSERT_TRUE(other) << other.error().message();
    auto r = other->read();
    ASSERT_TRUE(r && *r);
    (*r)->refuse((*r)->session, (*r)->epoch);
    ASSERT_TRUE(other->write(**r));
  }
  const sent_memory resolved = from.resolve(*to_destination(m));
  EXPECT_EQ(resolved.owner, owner::source);
  note_event("kept", "source");
  tell_to_receive(m);
  EXPECT_NE(there.said(1).find("the lock file was deleted"), std::string::npos);
}

TEST_F(deleted_lock, a_task_that_nobody_else_has_touched_runs) {
  const test_site m;
  task t(dev());
  other_process there("receives when told", m.folder());
  sender from(dev(), both, source_options(m));
  be_in_doubt(from, there, m);
  ASSERT_FALSE(HasFatalFailure());
  tell_to_receive(m);
  EXPECT_EQ(there.said(1), "runs here, epoch 2");
  EXPECT_EQ(from.resolve(*to_destination(m)).owner, owner::destination);
}

}  // namespace
}  // namespace stillmap::migration::testing
