// Publishers, holders and readers in processes of their own, each killed at each of its steps. Before the commit
// nothing is published, and the publisher has its memory as before; afterwards readers can attach, whoever dies.
#include "tests/checkpoint/publication/fixture.h"
#include "tests/checkpoint/publication/processes.h"
#include "tests/support/sample_task.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using namespace stillmap::testing::sample;

class publication_killed : public publication_fixture {
 protected:
  publication_killed() { start_holder_ = false; }
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    if (stillmap::testing::hostcuda_control::config().rfind("profile=h200", 0) != 0) {
      GTEST_SKIP() << "who dies is the same on every machine: one is enough";
    }
    if (role() == "holder") run_holder();
    if (role() == "publisher") run_publisher();
    if (role() == "reader") run_reader();
    // This process counts the memory of the machine, and has none.
    restart_as(("profile=h200,machine=" + machine_).c_str());
    free_at_first_ = free_bytes();
  }

  static client_options dying() {
    client_options options;
    options.timeout = 30s;
    options.on_step = [](step s) { die_if_told(name_of(s)); };
    return options;
  }
  [[noreturn]] static void run_holder() {
    holder_options options;
    options.timeout = 30s;
    options.on_step = [](holder_step s) { die_if_told(name_of(s)); };
    auto made = holder::create(meeting_place(), options);
    if (!made) say_and_end(made.error().message());
    say("listens");
    wait_for_end();
  }
  // Says what it was told and how it has its memory, and stays.
  [[noreturn]] void run_publisher() {
    task t(dev());
    publish_options options;
    static_cast<client_options &>(options) = dying();
    const auto published = publish(dev(), meeting_place(), "model", both, options);
    const bool writable = can_write(device_address(weights_at + page() + 64));
    std::string line = published ? "published" : "failed";
    if (!published && published.error().is(errc::busy)) line = "in doubt";
    line += writable ? ", writable" : ", read-only";
    put_back();
    const std::string wrong = task::wrong(dev());
    say(wrong.empty() ? line : wrong);
    wait_for_end();
  }
  // What can_write() has changed.
  void put_back() const {
    const device_address at(weights_at + page());
    if (can_write(at)) put(dev(), at, pattern(page(), 2));
  }
  // Says whether all of it is there, at the publisher's addresses, and what is left once the holder is gone.
  [[noreturn]] void run_reader() {
    attach_options options;
    static_cast<client_options &>(options) = dying();
    options.wait = 30s;
    options.verify = true;
    auto read = attach(dev(), meeting_place(), "model", options);
    if (!read) say_and_end(read.error().message());
    for (;;) {
      std::string wrong = task::wrong(dev());
      if (wrong.empty() && can_write(device_address(weights_at))) wrong = "it can be written";
      if (wrong.empty() && !holds(dev(), device_address(cache_at + page()), page(), 6)) {
        wrong = "the read-only page differs";
      }
      say(wrong.empty() ? "whole" : wrong);
      if (!wrong.empty()) wait_for_end();
      std::this_thread::sleep_for(20ms);
    }
  }

  std::size_t free_bytes() const { return dev().memory()->free.bytes(); }
  void expect_all_free() {
    EXPECT_TRUE(eventually([&] { return free_bytes() == free_at_first_; }))
        << free_bytes() << " of " << free_at_first_;
  }
  // As the next to ask, whoever has died before.
  void expect_readers_attach() {
    peer_process one("reader", place_, machine_);
    EXPECT_EQ(one.line(), "whole");
    one.kill();
    peer_process again("reader", place_, machine_);
    EXPECT_EQ(again.line(), "whole");
  }

  const std::string place_ = stillmap::testing::unique_name("/tmp/stillmap-killed");
  const std::string machine_ = stillmap::testing::unique_name("killed");
  std::size_t free_at_first_ = 0;
};

struct publisher_death {
  step at;
  bool published;
};

TEST_F(publication_killed, a_publisher_at_any_step) {
  for (const auto &[at, published] : {publisher_death{step::connected, false},
                                      {step::sealed, false},
                                      {step::manifest_sent, false},
                                      {step::pages_sent, false},
                                      {step::committed, true},
                                      {step::published, true}}) {
    SCOPED_TRACE(name_of(at));
    {
      peer_process keeps("holder", place_, machine_);
      ASSERT_EQ(keeps.line(), "listens");
      peer_process publisher("publisher", place_, machine_, name_of(at));
      EXPECT_EQ(publisher.line(), "killed");
      if (published) {
        expect_readers_attach();
      } else {
        const auto all = list(place_);
        ASSERT_DONE(all);
        EXPECT_TRUE(all->empty());
        peer_process second("publisher", place_, machine_);
        EXPECT_EQ(second.line(), "published, read-only");
        expect_readers_attach();
      }
    }
    expect_all_free();
  }
}

struct holder_death {
  holder_step at;
  const char *publisher;  // what it says
};

TEST_F(publication_killed, a_holder_at_any_step_of_publishing) {
  for (const auto &[at, says] : {holder_death{holder_step::publish_received, "failed, writable"},
                                 {holder_step::pages_received, "failed, writable"},
                                 {holder_step::ready_sent, "in doubt, read-only"},
                                 {holder_step::stored, "in doubt, read-only"},
                                 {holder_step::published_sent, "published, read-only"}}) {
    SCOPED_TRACE(name_of(at));
    {
      peer_process keeps("holder", place_, machine_, name_of(at));
      ASSERT_EQ(keeps.line(), "listens");
      peer_process publisher("publisher", place_, machine_);
      const std::string said = publisher.line();
      // The commit may find the holder dead, and then it is known that it was not made.
      if (at == holder_step::ready_sent) {
        EXPECT_TRUE(said == says || said == "failed, writable") << said;
      } else {
        EXPECT_EQ(said, says);
      }
      EXPECT_EQ(keeps.line(), "killed");
      // Its socket is replaced.
      peer_process next("holder", place_, machine_);
      EXPECT_EQ(next.line(), "listens");
      publisher.kill();
      peer_process second("publisher", place_, machine_);
      EXPECT_EQ(second.line(), "published, read-only");
      expect_readers_attach();
    }
    expect_all_free();
  }
}

TEST_F(publication_killed, a_holder_at_any_step_of_attaching) {
  for (const holder_step at :
       {holder_step::attach_received, holder_step::manifest_sent, holder_step::pages_sent}) {
    SCOPED_TRACE(name_of(at));
    {
      peer_process keeps("holder", place_, machine_, name_of(at));
      ASSERT_EQ(keeps.line(), "listens");
      peer_process publisher("publisher", place_, machine_);
      EXPECT_EQ(publisher.line(), "published, read-only");
      peer_process reader("reader", place_, machine_);
      const std::string said = reader.line();
      EXPECT_EQ(keeps.line(), "killed");
      if (at == holder_step::pages_sent) {
        EXPECT_EQ(said, "whole");
      } else {
        EXPECT_NE(said.find("the peer closed the connection"), std::string::npos) << said;
      }
    }
    expect_all_free();
  }
}

TEST_F(publication_killed, a_reader_at_any_step) {
  peer_process keeps("holder", place_, machine_);
  ASSERT_EQ(keeps.line(), "listens");
  peer_process publisher("publisher", place_, machine_);
  EXPECT_EQ(publisher.line(), "published, read-only");
  peer_process beside("reader", place_, machine_);
  EXPECT_EQ(beside.line(), "whole");
  const std::size_t free = free_bytes();
  for (const step at : {step::connected, step::manifest_received, step::reserved,
                        step::pages_received, step::mapped}) {
    SCOPED_TRACE(name_of(at));
    {
      peer_process reader("reader", place_, machine_, name_of(at));
      EXPECT_EQ(reader.line(), "killed");
    }
    EXPECT_TRUE(eventually([&] { return list(place_)->at(0).readers.size() == 1; }));
    EXPECT_EQ(list(place_)->at(0).readers[0], beside.pid());
    EXPECT_TRUE(eventually([&] { return free_bytes() == free; }));
  }
  expect_readers_attach();
}

// The only copy is the readers'.
TEST_F(publication_killed, readers_outlive_publisher_and_holder) {
  {
    peer_process keeps("holder", place_, machine_);
    ASSERT_EQ(keeps.line(), "listens");
    {
      peer_process publisher("publisher", place_, machine_);
      EXPECT_EQ(publisher.line(), "published, read-only");
    }
    // No process has it mapped.
    peer_process reader("reader", place_, machine_), second("reader", place_, machine_);
    EXPECT_EQ(reader.line(), "whole");
    EXPECT_EQ(second.line(), "whole");
    EXPECT_LT(free_bytes(), free_at_first_);
    keeps.kill();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(reader.line(), "whole");
    second.kill();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(reader.line(), "whole");
  }
  expect_all_free();
  EXPECT_FALSE(list(place_));
  peer_process next("holder", place_, machine_);
  EXPECT_EQ(next.line(), "listens");
  EXPECT_TRUE(list(place_)->empty());
}

// A holder that hangs costs a client its timeout, and nothing else.
TEST_F(publication_killed, a_holder_that_is_stopped_costs_the_timeout) {
  peer_process keeps("holder", place_, machine_);
  ASSERT_EQ(keeps.line(), "listens");
  keeps.stop();
  const growable_buffer one = exportable(1, "one", 1);
  publish_options publishing;
  publishing.timeout = 100ms;
  EXPECT_TRUE(fails_with(
      outcome(publish(dev(), place_, "model", std::vector<std::string>{"one"}, publishing)),
      errc::busy, "publication::publish"));
  EXPECT_TRUE(can_write(one.address()));
  attach_options reading = elsewhere();
  reading.timeout = 100ms;
  reading.wait = 50ms;
  EXPECT_TRUE(fails_with(outcome(attach(dev(), place_, "model", reading)), errc::busy,
                         "publication::attach"));
  client_options asking;
  asking.timeout = 50ms;
  EXPECT_TRUE(fails_with(outcome(list(place_, asking)), errc::busy, "publication::list"));
  EXPECT_TRUE(
      fails_with(outcome(withdraw(place_, "model", asking)), errc::busy, "publication::withdraw"));
  keeps.resume();
  ASSERT_DONE(publish(dev(), place_, "model", std::vector<std::string>{"one"}));
}

}  // namespace
}  // namespace stillmap::publication::testing
