// Host allocations of either end of a migration fail in turn: afterwards one end owns the whole task,
// the other has nothing of it, and the next migration succeeds. The other end is a process that
// serves one migration after the other.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/held.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/sample_task.h"

namespace stillmap::migration::testing {
namespace {

using handoff::testing::say;
using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::failing_thread;
using stillmap::testing::held;
using stillmap::testing::host_allocations;
using namespace std::chrono_literals;
using namespace stillmap::testing::sample;

// A migration makes about a thousand allocations on one thread and takes a few dozen milliseconds, or
// half a second where it fails late: so many of them are tried, evenly spaced.
std::uint64_t stride_of(std::uint64_t allocations) {
  const bool every = std::getenv("STILLMAP_MODEL_SECONDS") != nullptr;  // the run has time
  return std::max<std::uint64_t>(1, allocations / (every ? 200 : 12));
}

class migrating_without_host_memory : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_NEEDS_VMM();
    STILLMAP_ONE_PROFILE_DOES();
    if (part() == "destination") destination();
    if (part() == "source") source();
    site_.emplace();
  }

  // A new task each time, so that no two migrations share a record.
  static send_options sending(const test_site &m) {
    send_options options = source_options(m);
    options.task = {};
    options.channels = 1;
    options.chunk_bytes = 512 << 10;
    options.max_downtime = 1h;  // two rounds
    options.resolve_timeout = 2s;
    options.on_progress = {};
    return options;
  }

  static receive_options receiving(const test_site &m) {
    receive_options options = destination_options(m);
    options.on_step = {};
    // A session whose connection is lost while it awaits the commit ends after this time.
    options.resolve_timeout = 500ms;
    return options;
  }

  // Messages to the other process are files, which it removes.
  static void tell(const test_site &m, const char *what) { std::ofstream(m.folder() + '/' + what); }
  static bool told(const test_site &m, const char *what) {
    return std::filesystem::remove(m.folder() + '/' + what);
  }

  // The other process, until it is ended.
  [[noreturn]] void destination() {
    const test_site m(meeting_place());
    receive_options options = receiving(m);
    auto at = receiver::create(dev(), at_destination(m), options);
    if (!at) say_and_end(at.error().message());
    const held before = held::now(driver());
    for (std::size_t round = 0;;) {
      if (::getppid() == 1) say_and_end("the test has ended");
      auto came = at->receive(10ms);
      // After a migration that failed, a task must not arrive.
      const bool over = !came && told(m, "over");
      if (over) came = at->receive(100ms);
      if (!came && !over) continue;
      std::string what = came ? "owner" : "nothing";
      if (came) what += task::wrong(dev());
      came = tl::unexpected<error>(error{});
      if (const std::string left = before.more_now(driver()); !left.empty()) what += " " + left;
      say(round++, what);
    }
  }
  [[noreturn]] void source() {
    const test_site m(meeting_place());
    const auto to = to_destination(m);
    for (std::size_t round = 0;; ++round) {
      const task t(dev());
      while (!told(m, "begin")) {
        if (::getppid() == 1) say_and_end("the test has ended");
        std::this_thread::sleep_for(1ms);
      }
      sender from(dev(), both, sending(m));
      sent_memory sent = from.send(*to);
      while (sent.owner == owner::in_doubt) sent = from.resolve(*to);
      const bool kept = sent.owner == owner::source;
      std::string what = kept ? "kept" + task::wrong(dev()) : "moved";
      if (kept && sent.failure) what += ": " + sent.failure->message();
      say(round, what);
    }
  }

  // One migration by the other process, a source. Whether the task has arrived.
  bool receive_one(other_process &there) {
    tell(*site_, "begin");
    const std::string what = there.said(round_++);
    EXPECT_TRUE(what == "moved" || what.rfind("kept: ", 0) == 0) << what;
    why_kept_ = what;
    return what == "moved";
  }
  void expect_arrived(receiver &at) {
    const auto came = at.receive(10s);
    ASSERT_DONE(came);
    EXPECT_EQ(task::wrong(dev()), "");
  }

  std::optional<test_site> site_;
  std::size_t round_ = 0;
  std::string why_kept_;  // by the last receive_one()
  allocation_sweep all_;
};

TEST_F(migrating_without_host_memory, a_source_keeps_or_gives_the_task) {
  // Reported: after the memory has moved, its record cannot be written, or it cannot be unmapped here.
  expect_unreturnable();
  other_process there("destination", site_->folder());
  const auto to = to_destination(*site_);
  const send_options options = sending(*site_);
  const auto mapped = [&] { return dev().space().stats().mapped_bytes; };
  // Returns the allocations that send() made.
  const auto migrate = [&](std::uint64_t nth, bool all_after) {
    const task t(dev());
    const auto whole = mapped();
    std::uint64_t made = 0;
    const held before = held::now(driver());
    const std::uint64_t reported = background_error_count();
    failing_allocation failing(nth, all_after);
    bool kept = true, unmapped = true;
    {
      sender from(dev(), both, options);
      sent_memory sent;
      (void)failing([&]() -> status {
        made = host_allocations();
        sent = from.send(*to);
        made = host_allocations() - made;
        return sent.failure ? status(tl::unexpected<error>(*sent.failure)) : status();
      });
      for (int i = 0; i < 10 && sent.owner == owner::in_doubt; ++i) sent = from.resolve(*to);
      kept = sent.owner == owner::source;
      EXPECT_NE(sent.owner, owner::in_doubt);
      EXPECT_EQ(sent.failure.has_value(), kept);
      unmapped = kept || sent.unmapped;
      const bool told = background_error_count() != reported;
      EXPECT_TRUE(unmapped || told);
      EXPECT_FALSE(kept && told);
    }
    if (kept) {
      tell(*site_, "over");
      EXPECT_EQ(there.said(round_++), "nothing");
      EXPECT_EQ(task::wrong(dev()), "");
      EXPECT_EQ(mapped(), whole);
      EXPECT_EQ(before.more_now(driver()), "");
      sender again(dev(), both, options);
      sent_memory sent = again.send(*to);
      // On a busy machine the destination ends a session that is silent for 500 ms, or takes what the failed
      // sender sent last for a source that begins anew.
      for (int i = 0; i < 10 && sent.owner == owner::source; ++i) sent = again.send(*to);
      EXPECT_EQ(sent.owner, owner::destination) << sent.failure->message();
    }
    EXPECT_EQ(there.said(round_++), "owner");
    EXPECT_TRUE(!unmapped || mapped() == page()) << "what does not belong to the task";
    if (failing.happened()) {
      ++all_.points;
      ++(kept ? all_.refused : all_.survived);
    }
    return made;
  };
  migrate(UINT64_MAX / 2, false);
  const std::uint64_t allocations = migrate(UINT64_MAX / 2, false);
  for (const bool all_after : {false, true}) {
    const std::uint64_t stride = stride_of(allocations) * (all_after ? 4 : 1);
    for (std::uint64_t n = 0; n < allocations && !HasFailure(); n += stride) {
      SCOPED_TRACE((all_after ? "all from allocation " : "allocation ") + std::to_string(n));
      migrate(n, all_after);
    }
  }
  // A migration allocates for as long as it polls, so a faster one does not reach the later points.
  EXPECT_GE(all_.points, 6u);
  all_.note("migration::sender", (" of " + std::to_string(allocations) + " allocations").c_str());
}

// A destination that welcomes the source, and then is gone.
class gone_channel final : public channel {
 public:
  gone_channel() {
    const std::vector<std::byte> body = encode(welcome_message{});
    welcome_.resize(header::bytes);
    encode(header{kind::welcome, body.size(), 0, {}}, std::span(welcome_).first<header::bytes>());
    welcome_.insert(welcome_.end(), body.begin(), body.end());
  }
  static peer_identity name() {
    const std::string longer(100, '.');  // than a string has room for without an allocation
    return {"address" + longer, "name" + longer, "fingerprint" + longer};
  }
  status handshake(std::chrono::milliseconds) override { return {}; }
  peer_identity peer() const override { return name(); }
  status send(std::span<const std::byte>, std::chrono::milliseconds) override { return {}; }
  status receive(std::span<std::byte> into, std::chrono::milliseconds) override {
    if (welcome_.size() - at_ < into.size()) return make_error(errc::busy, "it is gone");
    std::copy_n(welcome_.data() + at_, into.size(), into.data());
    at_ += into.size();
    return {};
  }
  void shutdown() noexcept override {}

 private:
  std::vector<std::byte> welcome_;
  std::size_t at_ = 0;
};

TEST_F(migrating_without_host_memory, the_peer_is_named_as_a_whole_or_not_at_all) {
  class to_gone_channel final : public transport {
    result<std::unique_ptr<channel>> connect(std::chrono::milliseconds) override {
      return std::make_unique<gone_channel>();
    }
  } to;
  const task t(dev());
  const peer_identity whole = gone_channel::name();
  std::size_t named = 0, unnamed = 0;
  fail_each_allocation([&](failing_allocation &failing) {
    sender from(dev(), both, sending(*site_));
    sent_memory sent;
    (void)failing([&]() -> status {
      sent = from.send(to);
      return sent.failure->is(errc::busy) ? status() : tl::unexpected<error>(*sent.failure);
    });
    EXPECT_EQ(sent.owner, owner::source);
    const bool is_named = !sent.to.address.empty();
    EXPECT_EQ(sent.to.address, is_named ? whole.address : "");
    EXPECT_EQ(sent.to.name, is_named ? whole.name : "");
    EXPECT_EQ(sent.to.fingerprint, is_named ? whole.fingerprint : "");
    ++(is_named ? named : unnamed);
  });
  EXPECT_GT(named, 0u);
  EXPECT_GT(unnamed, 3u);
}

// The threads of a receiver: each serves one connection.
TEST_F(migrating_without_host_memory, a_destination_gets_the_task_or_nothing) {
  failing_thread thread;
  // Of a migration: the control connection, and one data connection.
  std::atomic<int> connections{0}, failing_one{-1};
  receive_options options = receiving(*site_);
  options.allow = [&](const peer_identity &) {
    if (connections++ == failing_one) thread.begin();
    return true;
  };
  auto made = receiver::create(dev(), at_destination(*site_), options);
  ASSERT_DONE(made);
  receiver &at = *made;
  other_process there("source", site_->folder());
  ASSERT_TRUE(receive_one(there));
  expect_arrived(at);
  const held before = held::now(driver());
  std::string tried;
  for (const int one : {0, 1}) {
    SCOPED_TRACE("connection " + std::to_string(one));
    std::uint64_t allocations = 1;
    for (std::uint64_t n = UINT64_MAX / 2, next = 0; next <= allocations && !HasFailure();
         n = next, next += stride_of(allocations)) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      connections = 0;
      failing_one = one;
      thread.arm(n);
      const bool moved = receive_one(there);
      const bool failed = thread.happened();
      if (moved) {
        expect_arrived(at);
      } else {
        EXPECT_TRUE(failed) << why_kept_;
        EXPECT_FALSE(at.receive(0ms));
      }
      EXPECT_EQ(before.more_now(driver()), "");
      if (n == UINT64_MAX / 2) {
        EXPECT_TRUE(moved);
        allocations = thread.allocations();
        tried += " " + std::to_string(allocations);
      }
      if (!failed) continue;
      ++all_.points;
      ++(moved ? all_.survived : all_.refused);
    }
  }
  failing_one = -1;
  ASSERT_FALSE(HasFailure());
  // receive() itself: the task waits for the next one.
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    ASSERT_TRUE(receive_one(there));
    const auto came = failing([&] { return at.receive(10s); });
    if (!came) expect_arrived(at);
  });
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(15));
  all_.note("migration::receiver", (" of" + tried + " allocations of its threads").c_str());
}

// A record is the old one or the new one.
TEST_F(migrating_without_host_memory, records_are_whole) {
  const std::string directory = site_->records("source");
  record r;
  r.task.bytes.fill(std::byte{9});
  r.peer = "192.0.2.7:4711 a peer whose name is long";
  const auto opened = [&] { return record_file::open(directory, r.task); };
  all_ += fail_each_allocation([&](failing_allocation &failing) { (void)failing(opened); });
  auto file = opened();
  ASSERT_DONE(file);
  ASSERT_DONE(file->write(r));
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    const std::uint64_t before = r.epoch++;
    const auto done = failing([&] { return file->write(r); });
    const auto is = file->read();
    ASSERT_DONE(is);
    ASSERT_TRUE(*is);
    EXPECT_EQ((*is)->epoch, done ? r.epoch : before);
    EXPECT_EQ((*is)->peer, r.peer);
    r.epoch = (*is)->epoch;
  });
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    const auto is = failing([&] { return file->read(); });
    EXPECT_TRUE(!is || (*is && (*is)->peer == r.peer));
  });
  all_ += fail_each_allocation([&](failing_allocation &failing) {
    const auto all = failing([&] { return list_records(directory); });
    EXPECT_TRUE(!all || (all->size() == 1 && all->front().value));
  });
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(20));
  all_.note("migration::record");
}

}  // namespace
}  // namespace stillmap::migration::testing
