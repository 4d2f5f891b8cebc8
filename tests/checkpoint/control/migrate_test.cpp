// Migration by request: callbacks, and the owner after the migration is cancelled, the client
// disconnects, or the destination dies between commit and reply.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <thread>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/gpu_test.h"

namespace stillmap::control::testing {
namespace {

using handoff::testing::other_process;
using handoff::testing::say_and_end;
using migration::owner;
using migration::ownership;
using migration::record_file;
using migration::step;
using migration::testing::test_site;
using words = std::vector<std::string>;

constexpr std::chrono::milliseconds long_enough(30'000);

template <class Outcome>
bool fails_as(errc c, const Outcome &o) {
  return !o && o.error().is(c);
}

class migrations : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (handoff::testing::part() == "destination") destination();
    make_memory();
  }

  // Another process, to which it goes.
  [[noreturn]] void destination() {
    const test_site m(handoff::testing::meeting_place());
    auto at = migration::receiver::create(dev(), migration::testing::at_destination(m),
                                          migration::testing::destination_options(m));
    if (!at) say_and_end(at.error().message());
    auto came = at->receive(std::chrono::minutes(2));
    if (!came) say_and_end(came.error().message());
    if (!is_whole(dev())) say_and_end("it has something else");
    say_and_end("owner, epoch " + std::to_string(came->epoch));
  }
  other_process somewhere(step dies_at) const {
    return other_process("destination", site_.folder(), static_cast<int>(dies_at));
  }

  // All of it, to whoever listens at the meeting.
  migrate_request request() const {
    const migration::send_options options = migration::testing::source_options(site_);
    migrate_request r;
    r.tags = {"weights", "cache"};
    for (int i = 0; i < 3000 && site_.address().empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    r.to = site_.address();
    r.certificate = site_.folder() + "/source.crt";
    r.key = site_.folder() + "/source.key";
    r.fingerprints = site_.of("source").fingerprints;
    r.records = options.records;
    r.task = options.task;
    r.timeout = options.timeout;
    r.resolve_timeout = std::chrono::milliseconds(0);
    return r;
  }
  std::optional<migration::record> record() const {
    auto file = record_file::open(request().records, request().task);
    if (!file) throw std::runtime_error(file.error().message());
    auto r = file->read();
    if (!r) throw std::runtime_error(r.error().message());
    return *r;
  }
  // A task that stops when it is given up, and not before.
  server_options held() {
    server_options o = written_down();
    o.task.quiesce = [this, before = o.task.quiesce](auto tags, std::stop_token stop) {
      const status s = before(tags, stop);
      stopping_.set_value();
      while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return s;
    };
    return o;
  }
  void wait_until_idle() const {
    while (ask().status()->job.request != request_kind::none) std::this_thread::yield();
  }

  const test_site site_;
  std::promise<void> stopping_;
};

TEST_F(migrations, memory_moves_and_progress_is_reported) {
  other_process there("destination", site_.folder());
  server_options o = written_down();
  std::optional<process_status> meanwhile;
  o.task.quiesce = [&, before = o.task.quiesce](auto tags, auto stop) {
    if (auto s = ask().status()) meanwhile = std::move(*s);
    return before(tags, stop);
  };
  start(std::move(o));
  const std::uint64_t mapped = dev().space().stats().mapped_bytes;
  std::vector<step> steps;
  std::uint64_t of = 0;
  const auto done = ask().migrate(request(), [&](const migration::progress &p) {
    if (steps.empty() || steps.back() != p.step) steps.push_back(p.step);
    of = std::max(of, p.round_bytes);
    return true;
  });
  ASSERT_DONE(done);
  EXPECT_EQ(done->owner, owner::destination);
  EXPECT_EQ(done->task, request().task);
  EXPECT_EQ(done->epoch, 2u);
  EXPECT_EQ(done->to.name, "the destination");
  EXPECT_EQ(done->bytes, 6 * page());
  EXPECT_GE(done->bytes_sent, 6 * page());
  EXPECT_GE(done->rounds, 2u);
  EXPECT_TRUE(done->unmapped);
  EXPECT_FALSE(done->failure);
  EXPECT_EQ(there.verdict(), "owner, epoch 2");
  EXPECT_EQ(seen(), (words{"stop weights cache", "given weights cache"}));
  EXPECT_EQ(dev().space().stats().mapped_bytes, mapped - 6 * page());
  EXPECT_EQ(record()->state, ownership::released);
  EXPECT_EQ(of, 6 * page());
  for (const step s : {step::prepared, step::quiesced, step::intent_recorded, step::released}) {
    EXPECT_NE(std::find(steps.begin(), steps.end(), s), steps.end()) << name_of(s);
  }
  ASSERT_TRUE(meanwhile);
  EXPECT_EQ(meanwhile->job.request, request_kind::migrate);
  EXPECT_EQ(meanwhile->job.step, step::copied);
  EXPECT_GE(meanwhile->job.round, 1u);
  EXPECT_GE(meanwhile->job.bytes_sent, 6 * page());
  EXPECT_FALSE(meanwhile->job.in_doubt);
  EXPECT_EQ(ask().status()->job.request, request_kind::none);
}

TEST_F(migrations, an_aborted_migration_changes_nothing_and_can_be_repeated) {
  other_process there("destination", site_.folder());
  start(held());
  EXPECT_TRUE(fails_as(errc::invalid_argument, ask().abort()));
  auto first = std::async(std::launch::async, [&] { return ask().migrate(request()); });
  stopping_.get_future().wait();
  EXPECT_TRUE(fails_as(errc::busy, ask().resume("cache")));
  EXPECT_TRUE(fails_as(errc::busy, ask().resolve()));
  const auto what = ask().abort();
  ASSERT_DONE(what);
  EXPECT_EQ(*what, request_kind::migrate);
  // Its answer comes when it is over, not when it was heard.
  EXPECT_EQ(ask().status()->job.request, request_kind::none);
  const auto no = first.get();
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::operation_canceled));
  EXPECT_NE(no.error().message().find("cancelled"), std::string::npos) << no.error().message();
  EXPECT_EQ(seen(), (words{"stop weights cache", "go weights cache"}));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_FALSE(record());
  stop();
  start(written_down());
  ASSERT_DONE(ask().migrate(request()));
  EXPECT_EQ(there.verdict(), "owner, epoch 2");
}

TEST_F(migrations, a_client_that_disconnects_cancels_it) {
  other_process there("destination", site_.folder());
  start(held());
  {
    auto gone = checkpoint::socket_channel::connect(where(), long_enough);
    ASSERT_TRUE(gone);
    ASSERT_TRUE(gone->send(static_cast<std::uint16_t>(kind::migrate), encode(request()), {},
                           long_enough, {}));
    stopping_.get_future().wait();
  }
  wait_until_idle();
  EXPECT_EQ(seen(), (words{"stop weights cache", "go weights cache"}));
  EXPECT_TRUE(memory_is_whole());
}

// The destination accepts the connection and never replies.
TEST_F(migrations, it_can_be_aborted_before_the_destination_replies) {
  const owned_fd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr *>(&at), bytes), 0);
  ASSERT_EQ(::listen(silent.get(), 1), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr *>(&at), &bytes), 0);
  site_.publish_address("127.0.0.1:" + std::to_string(ntohs(at.sin_port)));
  start(written_down());
  migrate_request r = request();
  r.timeout = std::chrono::hours(1);
  auto first = std::async(std::launch::async, [&] { return ask().migrate(r); });
  while (!ask().status()->job.step) std::this_thread::yield();
  EXPECT_TRUE(ask().abort());
  EXPECT_FALSE(first.get());
  EXPECT_EQ(seen(), words{});
}

TEST_F(migrations, a_server_that_is_destroyed_cancels_it) {
  other_process there("destination", site_.folder());
  start(held());
  auto first = std::async(std::launch::async, [&] { return ask().migrate(request()); });
  stopping_.get_future().wait();
  stop();
  EXPECT_FALSE(first.get());
  EXPECT_EQ(seen(), (words{"stop weights cache", "go weights cache"}));
  EXPECT_TRUE(memory_is_whole());
}

// The destination dies after it has received the commit: only its record knows the owner.
TEST_F(migrations, in_doubt_the_task_stays_stopped_until_it_is_resolved) {
  other_process first = somewhere(step::commit_received);
  start(written_down());
  const auto open = ask().migrate(request());
  ASSERT_DONE(open);
  EXPECT_EQ(open->owner, owner::in_doubt);
  EXPECT_TRUE(open->failure);
  EXPECT_EQ(first.verdict(), "killed");
  EXPECT_EQ(seen(), words{"stop weights cache"});
  const process_status s = *ask().status();
  EXPECT_EQ(s.job.request, request_kind::migrate);
  EXPECT_TRUE(s.job.in_doubt);
  // Nothing else is done with it.
  const auto busy = ask().suspend({"weights", checkpoint::backing_store::discard, ""});
  ASSERT_FALSE(busy);
  EXPECT_TRUE(busy.error().is(errc::busy));
  EXPECT_NE(busy.error().message().find("in doubt"), std::string::npos) << busy.error().message();
  EXPECT_TRUE(fails_as(errc::busy, ask().migrate(request())));
  EXPECT_TRUE(fails_as(errc::invalid_argument, ask().abort()));
  const auto nobody = ask().resolve();
  ASSERT_DONE(nobody);
  EXPECT_EQ(nobody->owner, owner::in_doubt);
  EXPECT_EQ(seen(), words{"stop weights cache"});

  other_process again("destination", site_.folder());
  auto told = ask().resolve();
  while (told && told->owner == owner::in_doubt) told = ask().resolve();
  ASSERT_DONE(told);
  EXPECT_EQ(told->owner, owner::source);
  EXPECT_EQ(seen(), (words{"stop weights cache", "go weights cache"}));
  EXPECT_TRUE(memory_is_whole());
  EXPECT_TRUE(fails_as(errc::invalid_argument, ask().resolve()));
  // It is still the same task.
  migrate_request r = request();
  r.task = {};
  const auto done = ask().migrate(r);
  ASSERT_DONE(done);
  EXPECT_EQ(done->task, request().task);
  EXPECT_EQ(again.verdict(), "owner, epoch 1003") << "one was refused";
}

TEST_F(migrations, what_is_refused_leaves_the_task_alone) {
  other_process there("destination", site_.folder());
  start(written_down());
  const auto refused = [&](const char *says, auto change) {
    migrate_request r = request();
    change(r);
    const auto no = ask().migrate(r);
    ASSERT_FALSE(no) << says;
    EXPECT_NE(no.error().message().find(says), std::string::npos) << no.error().message();
  };
  refused("no memory has this tag", [](auto &r) { r.tags = {"weights", "nobody"}; });
  refused("/nowhere.pem: ", [](auto &r) { r.key = "/nowhere.pem"; });
  refused("neither an authority nor a fingerprint", [](auto &r) { r.fingerprints.clear(); });
  refused("certificate verify failed", [](auto &r) { r.fingerprints = {std::string(64, 'a')}; });
  refused("no directory for the ownership record", [](auto &r) { r.records.clear(); });
  refused("cannot be opened", [&](auto &r) { r.records = file("nowhere"); });
  // Regression: the server waited for a writer of the pipe, for ever.
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  for (auto part :
       {&migrate_request::certificate, &migrate_request::key, &migrate_request::authorities}) {
    refused("not a regular file", [&](auto &r) { r.*part = file("pipe"); });
  }
  refused("not an address", [](auto &r) { r.to = "here"; });
  refused("channels", [](auto &r) { r.channels = 65; });
  refused("at least one round", [](auto &r) { r.max_rounds = 0; });
  EXPECT_EQ(seen(), words{});
  EXPECT_TRUE(memory_is_whole());
  EXPECT_FALSE(record());
}

TEST_F(migrations, a_task_that_does_not_stop_is_not_resumed) {
  other_process there("destination", site_.folder());
  server_options o = written_down();
  o.task.quiesce = [](auto, auto) {
    return status(tl::unexpected(
        error{make_error_code(errc::busy), "my_task::stop", "a step cannot be interrupted", 7, 9}));
  };
  start(std::move(o));
  const auto no = ask().migrate(request());
  ASSERT_FALSE(no);
  EXPECT_EQ(no.error().detail().cause.find("my_task::stop: "), 0u) << no.error().message();
  EXPECT_EQ(no.error().limit, 9u);
  EXPECT_EQ(seen(), words{});
  EXPECT_TRUE(memory_is_whole());
}

// As in a process that has received the task: the record is open, and the request names none.
TEST_F(migrations, an_open_record_is_closed_and_opened_again) {
  other_process there("destination", site_.folder());
  const migrate_request whole = request();
  server_options o = written_down();
  o.records = whole.records;
  o.id = whole.task;
  auto file = record_file::open(o.records, o.id);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write({o.id, 5, ownership::running, {}, "elsewhere", {}}));
  o.record = std::make_shared<record_file>(std::move(*file));
  start(o);
  migrate_request r = whole;
  r.records.clear();
  r.task = {};
  r.fingerprints = {std::string(64, 'a')};
  EXPECT_FALSE(ask().migrate(r));
  EXPECT_TRUE(fails_as(errc::busy, record_file::open(whole.records, whole.task)));
  migrate_request other = whole;
  other.task.bytes[0] = std::byte{1};
  const auto no = ask().migrate(other);
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::invalid_argument)) << no.error().message();
  r.fingerprints = whole.fingerprints;
  const auto done = ask().migrate(r);
  ASSERT_DONE(done);
  EXPECT_EQ(done->epoch, 6u);
  EXPECT_EQ(there.verdict(), "owner, epoch 6");
  EXPECT_EQ(record()->state, ownership::released);
}

TEST_F(migrations, a_snapshot_can_be_aborted_too) {
  start(held());
  snapshot_request r;
  r.tags = {"weights"};
  r.path = file("a.smi");
  auto first = std::async(std::launch::async, [&] { return ask().snapshot(r); });
  stopping_.get_future().wait();
  const auto what = ask().abort();
  ASSERT_DONE(what);
  EXPECT_EQ(*what, request_kind::snapshot);
  EXPECT_FALSE(first.get());
  EXPECT_EQ(seen(), (words{"stop weights", "go weights"}));
  EXPECT_EQ(files(), 0u);
}

TEST_F(migrations, abort_is_too_late_once_the_image_is_written) {
  server_options options = written_down();
  std::stop_token aborted;
  std::promise<void> written;
  options.task.quiesce = [&](auto, std::stop_token stop) {
    aborted = std::move(stop);
    return status{};
  };
  options.task.resume = [&](auto) {
    written.set_value();
    while (!aborted.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  start(std::move(options));
  snapshot_request r;
  r.tags = {"weights"};
  r.path = file("a.smi");
  auto first = std::async(std::launch::async, [&] { return ask().snapshot(r); });
  written.get_future().wait();
  const auto late = ask().abort();
  EXPECT_TRUE(fails_as(errc::busy, late));
  EXPECT_NE(late.error().message().find("too late"), std::string::npos) << late.error().message();
  EXPECT_TRUE(first.get());
  EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace stillmap::control::testing
