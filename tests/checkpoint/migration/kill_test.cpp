// Kills either end at every step, closes the connection at every message, asks late, and sends a task
// under an old epoch: the task never has two owners, and always has one while a process that can own
// it lives.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <thread>

#include "stillmap/checkpoint/migration/internal/session.h"
#include "stillmap/checkpoint/migration/internal/source_connections.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/effort.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using namespace stillmap::testing::sample;

// Fails all its channels permanently at the n-th message, sent or received, counted over all of
// them.
class cutting_transport final : public transport {
 public:
  cutting_transport(std::unique_ptr<transport> to, int at) : to_(std::move(to)), left_(at) {}
  int seen() const { return seen_; }

  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds wait) override {
    if (left_ <= 0) return make_error(errc::busy, "the link is cut");
    auto c = to_->connect(wait);
    if (!c) return c;
    return std::make_unique<cut_channel>(*this, std::move(*c));
  }

 private:
  class cut_channel final : public channel {
   public:
    cut_channel(cutting_transport &of, std::unique_ptr<channel> c) : of_(of), c_(std::move(c)) {}
    status handshake(std::chrono::milliseconds wait) override { return step(c_->handshake(wait)); }
    peer_identity peer() const override { return c_->peer(); }
    status send(std::span<const std::byte> bytes, std::chrono::milliseconds wait) override {
      if (of_.left_ <= 0) return cut_off();
      return step(c_->send(bytes, wait));
    }
    status receive(std::span<std::byte> into, std::chrono::milliseconds wait) override {
      if (of_.left_ <= 0) return cut_off();
      return step(c_->receive(into, wait));
    }
    void shutdown() noexcept override { c_->shutdown(); }

   private:
    // A message that was sent is delivered; one that was received is lost.
    status step(status s) {
      ++of_.seen_;
      if (--of_.left_ > 0) return s;
      return cut_off();
    }
    status cut_off() {
      c_->shutdown();
      return make_error(errc::busy, "the link is cut");
    }
    cutting_transport &of_;
    std::unique_ptr<channel> c_;
  };
  std::unique_ptr<transport> to_;
  std::atomic<int> left_, seen_{0};
};

class dying : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    const test_site m(meeting_place());
    if (part() == "source") source(m, false);
    if (part() == "settling source") source(m, true);
    if (part() == "destination") destination(m);
  }

  [[noreturn]] void source(const test_site &m, bool again) {
    std::optional<task> t;
    if (!again) t.emplace(dev());
    const auto to = to_destination(m);
    sender s(dev(), both, again ? settling(m) : source_options(m));
    const sent_memory sent = again ? s.resolve(*to) : s.send(*to);
    if (sent.owner == owner::destination) say_and_end("not owner");
    say_and_end(sent.owner == owner::in_doubt ? "undecided" : "owner");
  }

  static send_options settling(const test_site &m) {
    send_options options = source_options(m);
    options.resolve_timeout = std::chrono::milliseconds(20'000);
    return options;
  }

  // Prints its verdict when the task arrives, or when none arrives before the timeout.
  [[noreturn]] void destination(const test_site &m) {
    receive_options options = destination_options(m);
    auto at = receiver::create(dev(), at_destination(m), options);
    if (!at) say_and_end(at.error().message());
    std::printf("\nVERDICT not owner\n");
    std::fflush(stdout);
    const auto came = at->receive(std::chrono::milliseconds(60'000));
    if (!came) say_and_end("not owner");
    const std::string wrong = task::wrong(dev());
    std::printf("\nVERDICT %s\n", wrong.empty() ? "owner" : wrong.c_str());
    std::fflush(stdout);
    // Keeps the receiver running, which answers queries, until this process is killed.
    std::this_thread::sleep_for(std::chrono::seconds(60));
    ::_exit(0);
  }

  static std::string state_of(const sent_memory &s, const device &d) {
    if (s.owner == owner::in_doubt) return "undecided";
    if (s.owner == owner::destination) return "not owner";
    const std::string wrong = task::wrong(d);
    return wrong.empty() ? "owner" : wrong;
  }
};

TEST_F(dying, DestinationAtEveryStep) {
  std::string table =
      "note: a migration whose destination is killed (source, after it is back: source; "
      "destination):";
  for (int s = static_cast<int>(step::accepted); s <= static_cast<int>(step::running_recorded);
       ++s) {
    const test_site m;
    task t(dev());
    std::string first, then, there = "killed";
    {
      other_process dies("destination", m.folder(), s);
      const auto to = to_destination(m);
      sender from(dev(), both, source_options(m));
      sent_memory sent = from.send(*to);
      first = then = state_of(sent, dev());
      EXPECT_EQ(dies.verdict(), "killed") << name_of(static_cast<step>(s));
      note_event("killed", "destination");
      if (sent.owner == owner::in_doubt) {
        EXPECT_TRUE(sent.failure);
        // The destination restarts on the same port with the same records, and answers.
        other_process back("destination", m.folder());
        sent_memory settled = from.resolve(*to);
        for (int i = 0; i < 50 && settled.owner == owner::in_doubt; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          settled = from.resolve(*to);
        }
        if (settled.owner == owner::source) note_event("kept", "source");
        then = state_of(settled, dev());
        EXPECT_EQ(settled.failure.has_value(), settled.owner != owner::destination) << s;
      }
    }
    const auto at = static_cast<step>(s);
    table += std::string("\nnote:   ") + name_of(at) + ": " + first + "; " + then + "; " + there;
    // A destination killed before it sent its ownership has not run the task: the source keeps it.
    // Killed later, it takes the task with it.
    const bool went = at == step::ownership_sent || at == step::running_recorded;
    EXPECT_EQ(then, went ? "not owner" : "owner") << name_of(at);
    if (at < step::awaiting_commit) {
      EXPECT_EQ(first, "owner") << name_of(at);
    }
  }
  std::printf("%s\n", table.c_str());
}

TEST_F(dying, SourceAtEveryStep) {
  std::string table =
      "note: a migration whose source is killed (destination; after the source's machine has asked "
      "again):";
  for (int s = static_cast<int>(step::described); s <= static_cast<int>(step::released); ++s) {
    const test_site m;
    const auto at = static_cast<step>(s);
    if (is_of_groups(at)) continue;  // group_kill_test.cpp
    auto here = receiver::create(dev(), at_destination(m), destination_options(m));
    ASSERT_TRUE(here);
    {
      other_process dies("source", m.folder(), s);
      EXPECT_EQ(dies.verdict(), "killed") << name_of(at);
      note_event("killed", "source");
    }
    const auto state = [&](const result<received_memory> &a) {
      if (!a) return std::string("not owner");
      const std::string wrong = task::wrong(dev());
      return wrong.empty() ? std::string("owner") : wrong;
    };
    auto came = here->receive(std::chrono::milliseconds(300));
    const std::string first = state(came);
    std::string then = first;
    if (at == step::intent_recorded) {
      // The source's intent is on record and the destination has all contents: another process of
      // the source's machine can still commit.
      other_process again("settling source", m.folder());
      EXPECT_EQ(again.verdict(), "not owner");
      came = here->receive(std::chrono::milliseconds(5000));
      then = state(came);
    }
    table += std::string("\nnote:   ") + name_of(at) + ": " + first + "; " + then;
    // Before the intent, the task dies with its process, as it would without a migration.
    EXPECT_EQ(then, at >= step::intent_recorded ? "owner" : "not owner") << name_of(at);
  }
  std::printf("%s\n", table.c_str());
}

TEST_F(dying, LinkAtEveryMessage) {
  std::map<std::string, int> outcomes;
  int messages = 0;
  for (int n = 1;; ++n) {
    const test_site m;
    task t(dev());
    other_process there("destination", m.folder());
    cutting_transport cuts(to_destination(m), n);
    sender from(dev(), both, source_options(m));
    sent_memory sent = from.send(cuts);
    const bool through = cuts.seen() < n;
    std::string outcome = state_of(sent, dev());
    if (sent.owner == owner::in_doubt) {
      // The link works again.
      const auto to = to_destination(m);
      sent = from.resolve(*to);
      if (sent.owner == owner::source) note_event("kept", "source");
      outcome += ", then " + state_of(sent, dev());
    }
    ASSERT_NE(sent.owner, owner::in_doubt) << n;
    EXPECT_EQ(sent.failure.has_value(), sent.owner == owner::source) << n;
    ++outcomes[outcome];
    if (sent.owner == owner::source) {
      ASSERT_EQ(task::wrong(dev()), "") << n;
    } else {
      ASSERT_EQ(there.verdict_so_far("owner"), "owner") << n;
    }
    if (through) break;
    messages = n;
    // Messages with chunks are alike: one in 25 is enough. A process starts slowly under a sanitizer.
    if (n > 40 && n < 190) n += 24;
    if (!stillmap::testing::sanitizer().empty()) n += 2;
  }
  EXPECT_GT(messages, 20);
  std::string table = "note: a migration whose link is cut at each of " + std::to_string(messages) +
                      " messages (chunks: one in 25):";
  for (const auto &[what, times] : outcomes) {
    table += "\nnote:   the source is " + what + ": " + std::to_string(times);
  }
  std::printf("%s\n", table.c_str());
}

// The process that received the task answers after the session has ended, as often as it is asked.
TEST_F(dying, a_source_that_asks_late_learns_that_the_task_has_moved) {
  const test_site m;
  auto here = receiver::create(dev(), at_destination(m), destination_options(m));
  ASSERT_TRUE(here);
  {
    other_process dies("source", m.folder(), static_cast<int>(step::commit_sent));
    EXPECT_EQ(dies.verdict(), "killed");
  }
  outcome_query q;
  {
    const send_options sent = source_options(m);
    const auto file = record_file::open(sent.records, sent.task);
    ASSERT_TRUE(file);
    const auto r = file->read();
    ASSERT_TRUE(r && *r);
    ASSERT_EQ((*r)->state, ownership::intent);
    q = {(*r)->task, (*r)->session, (*r)->epoch + 1};
  }
  const auto to = to_destination(m);
  const auto ask = [&] {
    const auto reply = ask_outcome(*to, q, {}, std::chrono::milliseconds(30'000));
    if (!reply) return reply.error().message();
    return std::string(*reply == outcome::owner ? "owner" : "refused");
  };
  EXPECT_EQ(ask(), "owner") << "before receive()";
  const auto came = here->receive(std::chrono::milliseconds(30'000));
  ASSERT_TRUE(came) << came.error().message();
  EXPECT_EQ(ask(), "owner") << "after receive()";
  EXPECT_EQ(ask(), "owner") << "again";
  EXPECT_EQ(task::wrong(dev()), "");
  // The machine that sent it releases it.
  other_process again("settling source", m.folder());
  EXPECT_EQ(again.verdict(), "not owner");
}

// A machine that has the task takes only a newer epoch; one that gave it away also takes its own.
TEST_F(dying, a_task_of_an_epoch_older_than_the_record_is_refused) {
  struct {
    ownership before;     // none: of a machine that has refused the task
    std::uint64_t epoch;  // the record's is 5
    bool accepted;
  } const cases[] = {
      {ownership::owner, 4, false},    {ownership::owner, 5, false},
      {ownership::owner, 6, true},     {ownership::running, 4, false},
      {ownership::running, 5, false},  {ownership::running, 6, true},
      {ownership::released, 4, false}, {ownership::released, 5, true},
      {ownership::released, 6, true},  {ownership::none, 4, false},
      {ownership::none, 5, true},      {ownership::none, 6, true},
  };
  const test_site m;
  const receive_options options = destination_options(m);
  const task_id id = source_options(m).task;
  for (const auto &c : cases) {
    SCOPED_TRACE(std::string(name_of(c.before)) + ", " + std::to_string(c.epoch));
    {
      auto file = record_file::open(options.records, id);
      ASSERT_TRUE(file);
      record r{id, 5, c.before, {}, "", {}};
      if (c.before == ownership::none) {
        r.epoch = 0;
        r.set_transfer({}, 5, transfer_state::refused);
      }
      ASSERT_TRUE(file->write(r));
    }
    const auto s = session::create(dev(), {id, c.epoch, page(), 64 << 10, 2, {}}, {}, options);
    ASSERT_EQ(s.has_value(), c.accepted) << (s ? "accepted" : s.error().message());
    if (s) continue;
    EXPECT_TRUE(s.error().is(errc::busy)) << s.error().message();
    EXPECT_EQ(s.error().value, c.epoch);
    EXPECT_EQ(s.error().limit, 5u);
  }
}

}  // namespace
}  // namespace stillmap::migration::testing
