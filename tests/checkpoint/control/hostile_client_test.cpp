// A server, and clients that lie in every field of every request, send half of one, say nothing, are
// slow, or disconnect at any moment. The server carries out no malformed request, and serves others.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"
#include "tests/checkpoint/handoff/frames.h"
#include "tests/support/held.h"

namespace stillmap::control::testing {
namespace {

using stillmap::testing::held;
using namespace std::chrono_literals;
using checkpoint::backing_store;
using connection = checkpoint::socket_channel;
using handoff::testing::end_writing;
using handoff::testing::frame;
using handoff::testing::write_frames;
using handoff::testing::write_with;

class hostile_client : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    make_memory();
  }
  connection reach() const {
    auto c = connection::connect(where(), 10s);
    if (!c) throw std::runtime_error(c.error().message());
    return std::move(*c);
  }
  // A request, field by field, beginning with the version.
  static frame request(kind k) {
    return frame(static_cast<std::uint16_t>(k),
                 name_of(static_cast<request_kind>(static_cast<int>(k) - 0x100 + 1)))
        .number("version", protocol_version, 4);
  }
  static frame suspend_frame(const suspend_request &r) {
    return request(kind::suspend)
        .text("tag", r.tag)
        .number("all", r.all, 4)
        .number("store", static_cast<std::uint32_t>(r.store), 4)
        .text("directory", r.directory);
  }
  static frame resume_frame(const std::string &tag) {
    return request(kind::resume).text("tag", tag).number("all", 0, 4);
  }
  static frame texts(frame f, const std::string &name, const std::vector<std::string> &all) {
    f.number(name + " count", all.size(), 4);
    for (const std::string &text : all) f.text(name, text);
    return f;
  }
  static frame snapshot_frame(const snapshot_request &r) {
    return texts(request(kind::snapshot).number("all", r.all, 4), "tag", r.tags)
        .text("path", r.path)
        .text("parent", r.parent)
        .number("codec", static_cast<std::uint32_t>(r.compress), 4)
        .number("replace", r.replace, 4)
        .number("force", r.force, 4)
        .number("verify", r.verify, 4)
        .text("key", r.key)
        .text("sign with", r.sign_with);
  }
  static frame restore_frame(const restore_request &r) {
    return texts(request(kind::restore).number("all", r.all, 4), "tag", r.tags)
        .text("path", r.path)
        .text("key", r.key);
  }
  static frame handoff_frame(const handoff_request &r) {
    return texts(request(kind::handoff).number("all", r.all, 4), "tag", r.tags)
        .text("to", r.to)
        .number("timeout", static_cast<std::uint64_t>(r.timeout.count()), 4);
  }
  static frame migrate_frame(const migrate_request &r) {
    frame f = texts(request(kind::migrate).number("all", r.all, 4), "tag", r.tags);
    f.text("to", r.to).text("certificate", r.certificate).text("key", r.key);
    f.text("authorities", r.authorities).text("name", r.name);
    f = texts(f, "fingerprint", r.fingerprints).text("records", r.records);
    f.number("task", 0, 8).number("task", 0, 8);
    f.number("max downtime", static_cast<std::uint64_t>(r.max_downtime.count()), 4);
    f.number("max rounds", r.max_rounds, 4).number("channels", r.channels, 4);
    f.number("on no convergence", static_cast<std::uint32_t>(r.on_no_convergence), 4);
    f.number("bytes per second", r.bytes_per_second, 8);
    f.number("timeout", static_cast<std::uint64_t>(r.timeout.count()), 4);
    f.number("resolve timeout", static_cast<std::uint64_t>(r.resolve_timeout.count()), 4);
    f.number("group", 0, 8).number("group", 0, 8).text("decider", r.decider);
    f.number("group timeout", static_cast<std::uint64_t>(r.group_timeout.count()), 4);
    return f.number("only TLS", r.only_tls ? 1 : 0, 4);
  }
  suspend_request a_suspend() const { return {"weights", backing_store::pinned_host, file("")}; }
  snapshot_request a_snapshot() const { return {{"weights"}, file("a.smi"), {}}; }
  restore_request a_restore() const { return {{"weights"}, file("none.smi"), {}}; }
  handoff_request a_handoff() const { return {{"weights"}, receiver_, 20ms}; }
  migrate_request a_migration() const {
    migrate_request r;
    r.tags = {"weights"};
    r.to = "localhost:1";
    r.certificate = file("none.crt");
    r.key = file("none.key");
    r.authorities = file("none.ca");
    r.name = "nobody";
    r.fingerprints = {"00"};
    r.records = file("");
    return r;
  }
  std::vector<frame> all_requests() const {
    return {request(kind::status),        suspend_frame(a_suspend()), resume_frame("weights"),
            snapshot_frame(a_snapshot()), handoff_frame(a_handoff()), migrate_frame(a_migration()),
            request(kind::abort),         request(kind::resolve),     restore_frame(a_restore())};
  }

  // Writes these bytes and returns whether they were carried out. `ends`: the client sends nothing
  // more, which cancels a snapshot.
  bool is_carried_out(std::span<const std::byte> bytes, std::span<const int> fds, bool ends) {
    connection c = reach();
    write_with(c.fd(), bytes, fds);
    if (ends) end_writing(c.fd());
    for (;;) {
      const auto came = c.receive(max_response_bytes, 10s, {});
      if (!came) {
        // Bytes that it did not read: the kernel may drop its reply.
        EXPECT_EQ(came.error().code, std::errc::connection_reset) << came.error().message();
        return false;
      }
      if (came->kind == static_cast<std::uint16_t>(kind::snapshot_progress)) continue;
      if (came->kind == static_cast<std::uint16_t>(kind::response)) return true;
      EXPECT_EQ(came->kind, static_cast<std::uint16_t>(kind::refusal));
      const error e = decode_refusal(came->body);
      EXPECT_NE(e.detail().cause, "");
      return false;
    }
  }
  // Everything is as before: nothing suspended, no file. Now and then another client is served.
  void expect_no_effect() {
    EXPECT_EQ(dev().space().stats().suspended_bytes, 0u);
    EXPECT_EQ(files(), 0u);
    if (++cases_ % 8 != 0) return;
    const auto s = ask().status();
    ASSERT_TRUE(s) << s.error().message();
    EXPECT_EQ(s->job.request, request_kind::none);
  }
  // Undoes what a request that was carried out has done.
  void undo() {
    [[maybe_unused]] const auto resumed = ask().resume("weights");
    for (const auto &f : std::filesystem::directory_iterator(file(""))) {
      std::filesystem::remove(f.path());
    }
  }

  std::string receiver_ = "@nobody";
  int cases_ = 0;
  // The server serves one client after another, with this timeout.
  server_options narrow(std::chrono::milliseconds timeout) {
    server_options o = written_down();
    o.timeout = timeout;
    o.max_connections = 1;
    return o;
  }
};

// Regression: each piece that it read began the timeout anew, so a few such clients kept all others out.
TEST_F(hostile_client, a_response_that_is_read_slowly_is_bounded_by_the_timeout) {
  std::vector<reservation> blocks;
  reservation_options options;
  for (int i = 0; i < 500; ++i) {  // more than a socket holds
    options.tag = std::string(4000, 'x') + std::to_string(i);
    auto made = reservation::create(dev(), page(), options);
    ASSERT_TRUE(made);
    blocks.push_back(std::move(*made));
  }
  start(narrow(200ms));
  connection slow = reach();
  ASSERT_TRUE(
      slow.send(static_cast<std::uint16_t>(kind::status), encode(empty_request{}), {}, 10s, {}));
  std::vector<char> some(32 << 10);
  std::size_t got = 0;
  for (;;) {
    std::this_thread::sleep_for(20ms);
    const ssize_t n = ::recv(slow.fd(), some.data(), some.size(), 0);
    if (n <= 0) break;
    got += static_cast<std::size_t>(n);
  }
  EXPECT_LT(got, std::size_t{1} << 20) << "all of it came";
  while (!ask().status()) std::this_thread::yield();
}

// Regression: as many as the server serves at once kept every other client out, until the timeout, and
// for ever if they came again.
TEST_F(hostile_client, idle_connections_keep_no_client_out) {
  server_options o = written_down();
  o.timeout = 10min;
  start(std::move(o));
  const std::byte half{0x53};
  std::vector<connection> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(reach());
    if (i % 2 == 0) {
      write_with(idle.back().fd(), {&half, 1}, {});
    }
    if (i >= 7) {
      const auto s = ask().status();
      ASSERT_TRUE(s) << i << ": " << s.error().message();
    }
  }
}

// Regression: the server waited for the receiver as long as the client had said, up to 49 days, and
// refused everything else as busy.
TEST_F(hostile_client, a_handoff_to_nobody_ends_with_its_client) {
  start(written_down());
  {
    connection gone = reach();
    const bytes body = encode(handoff_request{{"weights"}, new_place(), std::chrono::hours(24)});
    ASSERT_TRUE(gone.send(static_cast<std::uint16_t>(kind::handoff), body, {}, 10s, {}));
    while (ask().status()->job.request != request_kind::handoff) std::this_thread::yield();
  }
  for (int i = 0; i < 500 && ask().status()->job.request != request_kind::none; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(ask().status()->job.request, request_kind::none);
  EXPECT_TRUE(seen().empty());
}

TEST_F(hostile_client, the_scripts_are_requests) {
  EXPECT_EQ(all_requests()[0].body(), encode(empty_request{}));
  EXPECT_EQ(all_requests()[1].body(), encode(a_suspend()));
  EXPECT_EQ(all_requests()[2].body(), encode(resume_request{"weights"}));
  EXPECT_EQ(all_requests()[3].body(), encode(a_snapshot()));
  EXPECT_EQ(all_requests()[4].body(), encode(a_handoff()));
  EXPECT_EQ(all_requests()[5].body(), encode(a_migration()));
  EXPECT_EQ(all_requests()[6].name(), "abort");
  EXPECT_EQ(all_requests()[8].body(), encode(a_restore()));
}

TEST_F(hostile_client, a_lie_in_any_field_has_no_effect) {
  // Another value of these is another request, which is carried out.
  const std::set<std::string> other_requests{
      "abort: kind",     "resolve: kind",   "suspend: directory", "suspend: store",
      "snapshot: codec", "snapshot: force", "snapshot: replace",  "snapshot: verify"};
  receiver_ = new_place();  // accepts a connection and closes it
  auto at = handoff::listener::create(receiver_);
  ASSERT_TRUE(at);
  std::atomic<bool> over{false};
  std::atomic<int> accepted{0};
  std::jthread accepting([&] {
    while (!over) {
      if (at->accept(5ms)) ++accepted;
    }
  });
  start(written_down());
  std::set<std::string> carried_out;
  for (const frame &good : all_requests()) {
    for (const frame::lie &l : good.lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      const int accepted_before = accepted;
      const auto seen_before = seen();
      // A frame that is longer than what follows is waited for.
      const bool ends = l.field.ends_with(": bytes");
      const bool done = is_carried_out(l.message.bytes(), l.message.fds(), ends);
      if (done) {
        carried_out.insert(l.field);
        undo();
      } else {
        // The handoff's receiver is asked only with a well-formed request.
        const bool may_ask = l.field == "handoff: timeout";
        // A request whose timeout is over may end before the receiver has counted its connection.
        for (int i = 0; may_ask && accepted == accepted_before && i < 1000; ++i) {
          std::this_thread::sleep_for(10ms);
        }
        EXPECT_EQ(accepted - accepted_before, may_ask ? 1 : 0);
        // A path of slashes cannot be written to, which the snapshot notices last.
        const bool may_stop = l.field == "snapshot: path" && seen().size() > seen_before.size();
        EXPECT_EQ(seen().size() - seen_before.size(), may_stop ? 2u : 0u);
      }
      expect_no_effect();
    }
  }
  over = true;
  EXPECT_EQ(carried_out, other_requests);
  EXPECT_TRUE(memory_is_whole());
  std::printf("note: hostile client, fields: %d cases\n", cases_);
}

// Half a request, and then nothing: until the end of the stream, or the server's timeout.
TEST_F(hostile_client, half_a_request_has_no_effect) {
  server_options o = written_down();
  o.timeout = 50ms;
  start(std::move(o));
  for (const frame &good : all_requests()) {
    for (std::size_t n = 0; n < good.bytes().size(); ++n) {
      SCOPED_TRACE(good.name() + ", bytes " + std::to_string(n));
      EXPECT_FALSE(is_carried_out(std::span(good.bytes()).first(n), {}, true));
      ++cases_;
    }
    std::vector<connection> stopped;  // at once, so that their timeouts are the same one
    for (std::size_t n = 0; n < good.bytes().size(); n += good.bytes().size() / 7 + 1) {
      stopped.push_back(reach());
      write_with(stopped.back().fd(), std::span(good.bytes()).first(n), {});
      ++cases_;
    }
    for (connection &c : stopped) {
      const auto told = c.receive(max_response_bytes, 10s, {});
      ASSERT_TRUE(told) << told.error().message();
      EXPECT_EQ(told->kind, static_cast<std::uint16_t>(kind::refusal));
    }
  }
  EXPECT_EQ(seen().size(), 0u);
  stop();
  start(written_down());
  expect_no_effect();
  EXPECT_TRUE(memory_is_whole());
  std::printf("note: hostile client, half requests: %d cases\n", cases_);
}

TEST_F(hostile_client, descriptors_garbage_and_repetition_have_no_effect) {
  start(written_down());
  const held before = held::now(driver());
  const auto refused = [&](std::span<const std::byte> bytes, const std::vector<int> &fds) {
    EXPECT_FALSE(is_carried_out(bytes, fds, true)) << bytes.size();
    expect_no_effect();
  };
  for (const frame &good : all_requests()) {
    for (const std::size_t n : {1, 2, 128, 129, 253}) {
      SCOPED_TRACE(good.name() + " with descriptors: " + std::to_string(n));
      frame with = good;
      with.with(std::vector<int>(n, STDERR_FILENO));
      refused(with.bytes(), with.fds());
      refused(good.bytes(), with.fds());  // not announced
    }
  }
  for (const std::size_t n : {std::size_t{1}, std::size_t{16}, std::size_t{10'000}}) {
    for (const int byte : {0, 0x53, 0xff}) {
      refused(std::vector<std::byte>(n, static_cast<std::byte>(byte)), {});
    }
  }
  EXPECT_EQ(seen().size(), 0u);
  {  // A second request on the same connection is not read.
    connection c = reach();
    bytes both = request(kind::status).bytes();
    const bytes second = suspend_frame(a_suspend()).bytes();
    both.insert(both.end(), second.begin(), second.end());
    write_with(c.fd(), both, {});
    const auto first = c.receive(max_response_bytes, 10s, {});
    ASSERT_TRUE(first) << first.error().message();
    EXPECT_EQ(first->kind, static_cast<std::uint16_t>(kind::response));
    EXPECT_FALSE(c.receive(max_response_bytes, 10s, {}));
  }
  expect_no_effect();
  EXPECT_EQ(seen().size(), 0u);
  EXPECT_EQ(before.more_now(driver()), "");
  std::printf("note: hostile client, descriptors and garbage: %d cases\n", cases_);
}

// A client that has sent its whole request and is gone: it is carried out, or cancelled, or not begun, as a whole.
TEST_F(hostile_client, disconnecting_at_once_leaves_all_or_nothing) {
  start(written_down());
  const auto begun = [&] {
    const auto s = ask().status();
    return s && (s->job.request != request_kind::none ||
                 std::ranges::any_of(s->tags,
                                     [](const tag_status &t) { return t.suspended_bytes != 0; }));
  };
  for (int i = 0; i < 5; ++i) {
    {
      connection gone = reach();
      write_frames(gone.fd(), std::vector<frame>{suspend_frame(a_suspend())});
      for (int wait = 0; wait < 5000 && !begun(); ++wait) std::this_thread::sleep_for(1ms);
    }
    while (!ask().resume("weights")) std::this_thread::yield();
    EXPECT_TRUE(memory_is_whole());
  }
  for (int i = 0; i < 5; ++i) {
    for (const frame &good : all_requests()) {
      if (good.name() == "suspend") continue;
      write_frames(reach().fd(), std::vector<frame>{good});
      EXPECT_TRUE(ask().status());
    }
  }
  stop();  // waits for them
  const auto all = seen();
  EXPECT_EQ(std::ranges::count(all, "stop weights"), std::ranges::count(all, "go weights"));
  EXPECT_TRUE(memory_is_whole());
  for (const auto &f : std::filesystem::directory_iterator(file(""))) {
    EXPECT_EQ(f.path().filename(), "a.smi") << "no temporary file";
  }
}

}  // namespace
}  // namespace stillmap::control::testing
