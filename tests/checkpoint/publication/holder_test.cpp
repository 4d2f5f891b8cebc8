// A holder and many clients: those that wait, flood it, or use up its descriptors.
#include "stillmap/checkpoint/publication/holder.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <list>

#include "stillmap/checkpoint/publication/internal/messages.h"
#include "tests/checkpoint/publication/fixture.h"
#include "tests/support/held.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;
using checkpoint::socket_channel;
using stillmap::testing::held;

class holder_test : public publication_fixture {
 protected:
  socket_channel reach() const {
    auto made = socket_channel::connect(address_, 10s);
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  socket_channel ask(const attach_request &r) const {
    socket_channel with = reach();
    EXPECT_TRUE(message_stream(with, 10s, {}).send(kind::attach, encode(r)));
    return with;
  }
  attach_request request(const std::string &name, std::chrono::milliseconds wait = 0ms,
                         bool claim = false) const {
    return {name, 0, dev().uuid(), page(), wait, claim};
  }
};

// Regression: they kept out the publisher that they waited for.
TEST_F(holder_test, clients_that_wait_keep_no_publisher_out) {
  holder_options options;
  options.max_connections = 8;
  start(std::move(options));
  const growable_buffer one = exportable(1, "one", 1);
  std::list<socket_channel> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(ask(request("model", 24h, i % 2 != 0)));
  // Whoever does not find a place among them is told so.
  attach_options wait = elsewhere();
  wait.wait = 1min;
  EXPECT_TRUE(eventually([&] {
    const auto late = attach(dev(), address_, "other", wait);
    return !late && late.error().is(errc::busy);
  }));
  const auto published = publish_tag("model", "one");
  ASSERT_DONE(published);
  EXPECT_TRUE(list(address_));
  waiting.clear();
  EXPECT_TRUE(attach_elsewhere());
}

// While it exists, this process may open fewer descriptors.
class few_descriptors {
 public:
  explicit few_descriptors(rlim_t n) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{n, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~few_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  few_descriptors(const few_descriptors &) = delete;

 private:
  rlimit before_{};
};

// Regression: descriptors of what was being published at the same time were not counted.
TEST_F(holder_test, pages_leave_descriptors_for_clients) {
  std::optional<growable_buffer> meanwhile(exportable(20, "meanwhile", 1));
  result<published_memory> second = tl::unexpected(error());
  holder_options options;
  std::atomic<bool> first{true};
  options.on_step = [&](holder_step s) {
    if (s == holder_step::publish_received && first.exchange(false)) return;
    if (s == holder_step::ready_sent && !second) second = publish_tag("meanwhile", "meanwhile");
  };
  start(std::move(options));
  const growable_buffer large = exportable(30, "large", 1);
  {
    const few_descriptors few(320);
    EXPECT_TRUE(publish_tag("large", "large"));
  }
  ASSERT_TRUE(second) << second.error().message();
  ASSERT_DONE(withdraw(address_, "large"));
  ASSERT_DONE(withdraw(address_, "meanwhile"));
  second = tl::unexpected(error());
  meanwhile.emplace(exportable(20, "meanwhile", 1));
  const growable_buffer again = exportable(30, "again", 1);
  {
    const few_descriptors few(290);
    EXPECT_TRUE(publish_tag("again", "again"));
  }
  ASSERT_FALSE(second);
  EXPECT_TRUE(second.error().is(errc::busy));
  EXPECT_NE(second.error().message().find("raise its limit"), std::string::npos)
      << second.error().message();
  EXPECT_TRUE(can_write(meanwhile->address()));
}

// Regression: readers used up all descriptors, and no connection was accepted any more.
TEST_F(holder_test, readers_leave_descriptors_for_clients) {
  const growable_buffer one = exportable(1, "one", 1);
  holder_options options;
  options.max_connections = 150;
  start(std::move(options));
  ASSERT_DONE(publish_tag("model", "one"));
  const few_descriptors few(320);
  std::list<attached_memory> readers;
  for (;;) {
    auto read = attach_elsewhere();
    if (!read) {
      EXPECT_TRUE(fails_with(outcome(read), errc::busy, "publication::attach"));
      EXPECT_NE(read.error().message().find("connection for each reader"), std::string::npos)
          << read.error().message();
      break;
    }
    readers.push_back(std::move(*read));
    ASSERT_LT(readers.size(), 150U);
  }
  EXPECT_TRUE(list(address_)) << "others are served";
  readers.pop_front();
  EXPECT_TRUE(eventually([&] { return attach_elsewhere().has_value(); }));
}

TEST_F(holder_test, a_flood_of_connections_keeps_nobody_out) {
  STILLMAP_NEEDS_HOSTCUDA();
  const growable_buffer one = exportable(1, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  {
    const held before = held::now(driver());
    std::atomic<bool> over{false};
    std::vector<std::thread> flood;
    for (int t = 0; t < 2; ++t) {
      flood.emplace_back([&] {
        std::list<socket_channel> open;
        while (!over) {
          auto with = socket_channel::connect(address_);
          if (!with) continue;
          open.push_back(std::move(*with));
          if (open.size() > 100) open.pop_front();
        }
      });
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(eventually([&] { return attach_elsewhere().has_value(); }));
      EXPECT_TRUE(eventually([&] { return list(address_).has_value(); }));
    }
    over = true;
    for (std::thread &t : flood) t.join();
    EXPECT_EQ(before.more_now(driver()), "");
  }
}

TEST_F(holder_test, a_claim_that_is_not_kept_ends_with_its_client) {
  std::optional<socket_channel> claims(ask(request("model", 0ms, true)));
  const auto told = claims->receive(1 << 16, 10s, {});
  ASSERT_DONE(told);
  EXPECT_EQ(told->kind, static_cast<std::uint16_t>(kind::claimed));
  attach_options options = elsewhere();
  options.wait = 50ms;
  EXPECT_TRUE(fails_with(outcome(attach_or_claim(dev(), address_, "model", options)), errc::busy,
                         "publication::attach_or_claim"));
  // A publication without a claim is served meanwhile.
  const growable_buffer one = exportable(1, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  EXPECT_TRUE(attach_elsewhere());
  ASSERT_DONE(withdraw(address_, "model"));
  claims.reset();
  options.wait = 1min;
  const auto next = attach_or_claim(dev(), address_, "model", options);
  ASSERT_DONE(next);
  EXPECT_TRUE(std::holds_alternative<claim>(*next));
}

TEST_F(holder_test, data_on_a_lease_ends_it) {
  const growable_buffer one = exportable(1, "one", 1);
  const auto published = publish_tag("model", "one");
  ASSERT_DONE(published);
  socket_channel reader = ask(request("model"));
  ASSERT_DONE(reader.receive(max_manifest_bytes, 10s, {}));
  ASSERT_DONE(reader.receive(0, 10s, {}));
  EXPECT_TRUE(eventually([&] { return readers_of(published->generation) == 1; }));
  ASSERT_DONE(message_stream(reader, 10s, {}).send(kind::list, encode_version()));
  EXPECT_TRUE(eventually([&] { return readers_of(published->generation) == 0; }));
  EXPECT_FALSE(reader.receive(1 << 20, 10s, {})) << "it is closed, and the request is not served";
}

TEST_F(holder_test, a_forked_child_has_no_holder) {
  const growable_buffer one = exportable(1, "one", 1);
  ASSERT_DONE(publish_tag("model", "one"));
  auto read = attach_elsewhere();
  ASSERT_DONE(read);
  int over[2], begun[2];
  ASSERT_EQ(::pipe(over), 0);
  ASSERT_EQ(::pipe(begun), 0);
  char nothing = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    holder_.reset();
    ::close(over[1]);
    (void)!::write(begun[1], &nothing, 1);
    (void)!::read(over[0], &nothing, 1);
    ::_exit(0);
  }
  ASSERT_EQ(::read(begun[0], &nothing, 1), 1);
  ::close(begun[0]);
  ::close(begun[1]);
  EXPECT_TRUE(attach_elsewhere());
  holder_.reset();
  EXPECT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(list(address_)->empty());
  ::close(over[0]);
  ::close(over[1]);
  int how = -1;
  EXPECT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
}

}  // namespace
}  // namespace stillmap::publication::testing
