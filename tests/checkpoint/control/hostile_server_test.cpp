// A client, and a server that lies in every field of every response, is slow, or ends in the middle. The
// client returns an error, or what the server said, and its texts are safe for a terminal.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "stillmap/checkpoint/base/socket_listener.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/checkpoint/handoff/frames.h"

namespace stillmap::control::testing {
namespace {

// What a server would not read is refused before anything is sent.
TEST(control_client, sends_no_request_that_is_too_large) {
  const client nobody("@stillmap-no-server-is-here");
  std::uint64_t smallest = UINT64_MAX;
  for (std::size_t n = max_request_bytes - 100; n <= max_request_bytes; ++n) {
    const auto refused = nobody.resume(std::string(n, 'a'));
    ASSERT_FALSE(refused);
    if (refused.error().is(errc::invalid_argument)) {
      smallest = std::min(smallest, refused.error().value);
    }
  }
  EXPECT_EQ(smallest, max_request_bytes + 1);
}

using namespace std::chrono_literals;
using handoff::testing::end_writing;
using handoff::testing::frame;
using handoff::testing::write_frames;
using handoff::testing::write_with;

// Serves one connection after another; `answers` is called when a request has come.
class lying_server {
 public:
  explicit lying_server(std::function<void(int socket)> answers)
      : answers_(std::move(answers)),
        listener_(std::move(*checkpoint::socket_listener::create(where_))) {}
  ~lying_server() {
    over_ = true;
    thread_.join();
  }
  const std::string &address() const { return where_; }

 private:
  void serve() {
    while (!over_) {
      auto c = listener_.accept(20ms);
      if (!c) continue;
      if (!c->receive(max_request_bytes, 10s, {})) continue;
      answers_(c->fd());
    }
  }
  const std::string where_ = new_place();
  const std::function<void(int socket)> answers_;
  checkpoint::socket_listener listener_;
  std::atomic<bool> over_{false};
  std::thread thread_{[this] { serve(); }};
};

// Regression: each byte began the timeout anew, here for an hour.
TEST(hostile_server, a_status_that_comes_slowly_is_bounded_by_the_timeout) {
  const lying_server at([](int socket) {
    const frame slow = frame(static_cast<std::uint16_t>(kind::response), "response")
                           .with_body(std::vector<std::byte>(60'000));
    try {
      for (std::size_t i = 0; i < slow.bytes().size(); ++i) {
        write_with(socket, std::span(slow.bytes()).subspan(i, 1), {});
        std::this_thread::sleep_for(60ms);
      }
    } catch (const std::runtime_error &) {  // the client is gone
    }
  });
  client_options options;
  options.timeout = 100ms;
  const auto s = client(at.address(), options).status();
  ASSERT_FALSE(s);
  EXPECT_TRUE(s.error().is(errc::busy)) << s.error().message();
}

// A response, or a message before it, field by field; and the call of the client that gets it.
struct answer {
  frame says;
  std::function<result<bytes>(const client &)> call;  // what came, encoded again
  const char *asked;
  bool is_response = true;
  bool is_exact = true;  // no field is rounded, and no text is changed
};

frame response(const char *name, kind k = kind::response) {
  return frame(static_cast<std::uint16_t>(k), name);
}

// `lost` is a code of the category, in the order of messages.cpp.
frame refusal_fields(frame f, std::uint32_t lost) {
  f.number("category", 0, 4).number("code", lost, 4).number("unit", 1, 4);
  return f.number("value", 7, 8).number("limit", 9, 8).text("message", lost != 0 ? "why" : "");
}

frame moved_frame(const char *name, migration::owner w) {
  frame f = response(name);
  f.number("owner", static_cast<std::uint32_t>(w), 4).number("task", 1, 8).number("task", 2, 8);
  f.number("epoch", 3, 8).text("address", "host:1").text("name", "name").text("print", "ff");
  for (const char *n : {"rounds", "bytes", "sent", "zero", "unchanged", "resent"})
    f.number(n, 4, 8);
  f.number("downtime", 5, 8).number("elapsed", 6, 8).number("unmapped", 1, 4);
  f.text("data transport", "ucx");
  f = refusal_fields(f, w == migration::owner::destination ? 0 : 5);
  return refusal_fields(f, 0);
}

template <class T>
result<bytes> again(const result<T> &r) {
  if (!r) return tl::unexpected(r.error());
  return encode(*r);
}

std::vector<answer> answers() {
  frame status = response("status");
  status.number("pid", 1, 4).text("device", "H200").number("ordinal", 0, 4);
  status.number("uuid", 1, 8).number("uuid", 2, 8);
  for (const char *n : {"page", "total", "free"}) status.number(n, 3, 8);
  status.number("request", 5, 4);
  for (const char *n : {"elapsed", "bytes", "total bytes"}) status.number(n, 4, 8);
  status.number("step", 0xffffffff, 4).number("round", 5, 8).number("sent", 6, 8);
  status.number("in doubt", 0, 4).number("omitted", 0, 8);
  status.number("omitted mapped", 0, 8)
      .number("omitted suspended", 0, 8)
      .number("published", 0, 8)
      .number("has figures", 1, 4);
  for (const char *n : {"allocated", "cached", "evictable", "limit"}) status.number(n, 3, 8);
  status.text("quota", "gpu0").number("tags", 1, 4).text("tag", "w");
  for (const char *n : {"blocks", "reserved", "mapped", "suspended"}) status.number(n, 4, 8);
  status.number("store", 0, 4);

  frame suspended = response("suspended");
  suspended.text("tag", "w").number("store", 1, 4);
  for (const char *n : {"places", "bytes", "released"}) suspended.number(n, 4, 8);

  frame written = response("written");
  for (int i = 0; i < 6; ++i) written.number("ids", ~std::uint64_t{1}, 8);
  for (int i = 0; i < 8; ++i) written.number("counts", 2, 8);
  written.number("direct", 0, 4);

  frame restored = response("restored");
  for (const char *n : {"image", "image", "pages", "bytes"}) restored.number(n, 4, 8);

  frame sent = response("sent");
  for (const char *n : {"blocks", "places", "pages", "bytes"}) sent.number(n, 4, 8);
  sent.number("unmapped", 1, 4).number("pid", 1, 4).number("uid", 2, 4).number("gid", 3, 4);

  frame saving = response("saving", kind::snapshot_progress);
  saving.number("verifying", 0, 4);
  for (const char *n : {"bytes", "total", "stored"}) saving.number(n, 4, 8);

  frame moving = response("moving", kind::migration_progress);
  moving.number("step", 1, 4);
  for (const char *n :
       {"round", "bytes", "sent", "round sent", "round bytes", "speed", "downtime"}) {
    moving.number(n, 4, 8);
  }
  const auto gets = [](auto call) { return [call](const client &c) { return again(call(c)); }; };
  const auto asks = gets([](const client &c) { return c.status(); });
  const auto saves = gets([](const client &c) { return c.snapshot({{"w"}, "/a"}); });
  const auto moves = gets([](const client &c) {
    migrate_request r;
    r.tags = {"w"};
    r.to = "host:1";
    r.certificate = r.key = "/k";
    return c.migrate(r);
  });
  const char *const outcome = "migrate or resolve";
  return {
      {status, asks, "status"},
      {suspended, gets([](const client &c) { return c.suspend({"w"}); }), "suspend"},
      {written, saves, "snapshot"},
      {restored, gets([](const client &c) {
         return c.restore({{"w"}, "/a"});
       }),
       "restore"},
      {sent, gets([](const client &c) {
         return c.handoff({{"w"}, "@x"});
       }),
       "handoff"},
      {moved_frame("moved", migration::owner::destination), moves, outcome, true, false},
      {moved_frame("doubt", migration::owner::in_doubt),
       gets([](const client &c) { return c.resolve(); }), outcome, true, false},
      {response("aborted").number("request", 4, 4), gets([](const client &c) { return c.abort(); }),
       "abort"},
      {refusal_fields(response("refused", kind::refusal), 5), asks, "status", false},
      {saving, saves, "snapshot", false},
      {moving, moves, outcome, false},
  };
}

// Nothing in it makes a terminal do anything.
bool is_harmless(const std::string &text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : ' ');
    if (c < ' ' || c == 127 || (c == 0xc2 && next >= 0x80 && next < 0xa0)) return false;
  }
  return true;
}

// A server that says what it is given, next, and closes the connection.
class scripted_server {
 public:
  result<bytes> gets(const answer &a, std::span<const std::byte> says, std::vector<int> fds = {}) {
    {
      const std::lock_guard lock(mutex_);
      says_.assign(says.begin(), says.end());
      fds_ = std::move(fds);
    }
    auto out = a.call(client_);
    if (!out) {
      EXPECT_TRUE(out.error().code);
      EXPECT_TRUE(is_harmless(out.error().message())) << out.error().message();
    }
    return out;
  }

 private:
  std::mutex mutex_;  // guards what follows: a client can have its answer before the server is done
  bytes says_;
  std::vector<int> fds_;
  const lying_server server_{[this](int socket) {
    const std::lock_guard lock(mutex_);
    write_with(socket, says_, fds_);
  }};
  const client client_{server_.address()};
};

TEST(hostile_server, a_lie_in_any_field_is_refused_or_what_it_says) {
  scripted_server server;
  int cases = 0, believed = 0;
  for (const answer &a : answers()) {
    SCOPED_TRACE(a.says.name());
    {
      const auto good = server.gets(a, a.says.bytes());
      EXPECT_EQ(good.has_value(), a.is_response);
      if (good && a.is_exact) {
        EXPECT_EQ(*good, a.says.body());
      }
    }
    for (const frame::lie &l : a.says.lies()) {
      SCOPED_TRACE(l.field + " = " + l.value);
      const auto came = server.gets(a, l.message.bytes());
      ++cases;
      if (!came) continue;
      ++believed;
      EXPECT_TRUE(l.field.find("cut off") == std::string::npos &&
                  l.field.find("too long") == std::string::npos);
      // The highest bit of a time is dropped.
      if (a.is_exact && l.field != "status: elapsed") {
        EXPECT_EQ(*came, l.message.body());
      }
    }
    for (std::size_t n = 0; n < a.says.bytes().size(); ++n) {
      EXPECT_FALSE(server.gets(a, std::span(a.says.bytes()).first(n))) << n;
      ++cases;
    }
  }
  EXPECT_GT(believed, 100);
  std::printf("note: hostile server, fields: %d cases, %d believed\n", cases, believed);
}

TEST(hostile_server, other_kinds_of_messages_and_descriptors_are_refused_or_closed) {
  scripted_server server;
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const std::vector<answer> all = answers();
  const auto before = descriptors();
  int cases = 0;
  for (const answer &a : all) {
    // What belongs to another request, and progress without a response.
    for (const answer &other : all) {
      SCOPED_TRACE(other.says.name() + " for " + a.says.name());
      const auto came = server.gets(a, other.says.bytes());
      EXPECT_EQ(came.has_value(), other.is_response && other.asked == a.asked);
      ++cases;
    }
    for (const std::size_t n : {1, 2, 128, 253}) {
      frame with = a.says;
      with.with(std::vector<int>(n, STDERR_FILENO));
      [[maybe_unused]] const auto announced = server.gets(a, with.bytes(), with.fds());
      EXPECT_FALSE(server.gets(a, a.says.bytes(), with.fds())) << n;
      ++cases;
    }
  }
  for (int i = 0; i < 1000 && descriptors() > before; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_LE(descriptors(), before);
  std::printf("note: hostile server, kinds and descriptors: %d cases\n", cases);
}

}  // namespace
}  // namespace stillmap::control::testing
