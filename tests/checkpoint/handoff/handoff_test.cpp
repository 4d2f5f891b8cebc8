// Handoffs: contents, addresses and sharing; the owner when either process is killed at any step;
// and requests that are refused.
#include "stillmap/checkpoint/handoff/handoff.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "stillmap/checkpoint/handoff/internal/ownership_word.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/support/buffer_test.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/no_stdin.h"
#include "tests/support/sample_task.h"

namespace stillmap::handoff::testing {
namespace {

using namespace stillmap::testing::sample;

using namespace literals;
using namespace std::chrono_literals;
using checkpoint::restored_memory;
using stillmap::testing::fails_with;
using stillmap::testing::get;
using stillmap::testing::holds;
using stillmap::testing::outcome;
using stillmap::testing::pattern;
using stillmap::testing::put;

bool copied_nothing(const driver_counts &d) {
  return d.bytes_on_device == 0 && d.bytes_to_device == 0 && d.bytes_to_host == 0;
}

class handoff_test : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    if (part() == "sender") sender();
    if (part() == "receiver") receiver(note_and_die);
    if (part() == "receiver without descriptors") {
      std::optional<stillmap::testing::no_descriptors> none;
      receiver([&](step s) {
        if (s == step::mapped) none.emplace();
        if (s == step::ready_sent) none.reset();
      });
    }
    if (part() == "receiver without input") {
      std::optional<stillmap::testing::no_stdin> none;
      receiver([&](step s) {
        if (s == step::mapped) none.emplace();
        die_if_told(s);
      });
    }
  }

  static void note_and_die(step s) {
    note_event(name_of(s), part());
    if (is_told_to_die(s)) note_event("killed", part());
    die_if_told(s);
  }

  static handoff_options options() {
    handoff_options options;
    options.timeout = 30s;
    options.on_step = note_and_die;
    return options;
  }

  [[noreturn]] void sender() {
    task t(dev());
    auto to = connection::connect(meeting_place(), 30s);
    if (!to) say_and_end(to.error().message());
    const driver_counts before = counts();
    const auto sent = send(dev(), *to, both, options());
    if (!copied_nothing(counts() - before)) say_and_end("copied");
    if (!sent) {
      note_event("kept", part());
      const std::string wrong = task::wrong(dev());
      say_and_end(wrong.empty() ? "owner" : wrong);
    }
    const address_space_stats books = dev().space().stats();
    const bool gone = books.mapped_bytes == page() && books.suspended_bytes == 0 &&
                      books.released_bytes == 7 * page() && sent->unmapped && sent->places == 7 &&
                      sent->pages == 6;
    const bool rest = holds(dev(), device_address(other_at), page(), 7);
    say_and_end(!gone   ? "still has memory"
                : !rest ? "lost memory that it did not send"
                        : "not owner");
  }

  [[noreturn]] void receiver(std::function<void(step)> on_step) {
    auto at = listener::create(meeting_place());
    if (!at) say_and_end(at.error().message());
    auto from = at->accept(30s);
    if (!from) say_and_end(from.error().message());
    const driver_counts before = counts();
    handoff_options how = options();
    how.on_step = std::move(on_step);
    auto received = receive(dev(), *from, how);
    if (!copied_nothing(counts() - before)) say_and_end("copied");
    if (!received) {
      note_event("has nothing", part());
      const bool nothing = dev().space().stats().mapped_bytes == 0;
      say_and_end(nothing ? "not owner" : "kept memory");
    }
    say_and_end(use(*received));
  }

  std::string use(restored_memory &m) const {
    if (const std::string wrong = task::wrong(dev()); !wrong.empty()) return wrong;
    if (m.tagged("weights") !=
            std::vector<virtual_range>{{device_address(weights_at), 16 * page()}} ||
        m.tagged("cache").size() != 1 || m.bytes() != 6 * page()) {
      return "ranges differ";
    }
    std::set<const page_pool *> pools;
    for (const auto &at : dev().space().mappings()) pools.insert(at.backing.pool().get());
    if (pools.size() != 1) return "pages of one kind are in several pools";
    // The alias is one page at two addresses, and another page is read-only.
    put(dev(), device_address(weights_at + 16), pattern(64, 9));
    if (!holds(dev(), device_address(weights_at + 5 * page() + 16), 64, 9)) return "no alias";
    const context_guard guard(driver(), dev().context());
    if (driver().set_bytes_async(device_address(cache_at + page()), 1, 64, nullptr)) {
      return "a read-only page can be written";
    }
    return "owner";
  }

  // Random: sandboxes share abstract names, and have equal process ids.
  static std::string new_place() {
    std::random_device random;
    return "@stillmap-test-" + std::to_string(random()) + '-' + std::to_string(random());
  }

  // Two connected ends in this process.
  struct pair {
    connection mine, others;
  };
  static pair connected() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("socketpair");
    }
    return {std::move(*connection::adopt(owned_fd(ends[0]))),
            std::move(*connection::adopt(owned_fd(ends[1])))};
  }
};

TEST_F(handoff_test, memory_arrives_without_a_copy) {
  note_event("run");
  const std::string where = new_place();
  other_process sender("sender", where);  // started first: waits for the listener
  other_process receiver("receiver", where);
  EXPECT_EQ(sender.verdict(), "not owner");
  EXPECT_EQ(receiver.verdict(), "owner");
}

struct death {
  const char *killed;
  step at;
  const char *survivor;  // verdict of the other process
};

// Before the commit the sender owns the memory, dead or alive; afterwards the receiver does. If the
// receiver dies before it reports the commit, the sender takes the memory back.
TEST_F(handoff_test, killing_either_process_at_any_step_leaves_one_owner) {
  const death all[] = {
      {"sender", step::greeted, "not owner"},       {"sender", step::layout_sent, "not owner"},
      {"sender", step::pages_sent, "not owner"},    {"sender", step::ready_received, "not owner"},
      {"sender", step::idle, "not owner"},          {"sender", step::offer_sent, "owner"},
      {"sender", step::commit_received, "owner"},   {"sender", step::released, "owner"},
      {"receiver", step::greeted, "owner"},         {"receiver", step::layout_received, "owner"},
      {"receiver", step::reserved, "owner"},        {"receiver", step::pages_received, "owner"},
      {"receiver", step::mapped, "owner"},          {"receiver", step::ready_sent, "owner"},
      {"receiver", step::offer_received, "owner"},  {"receiver", step::committed, "owner"},
      {"receiver", step::commit_sent, "not owner"},
  };
  std::printf("  killed  at                survivor\n");
  for (const death &d : all) {
    SCOPED_TRACE(std::string(d.killed) + " killed at " + name_of(d.at));
    const std::string where = new_place();
    const bool sender_dies = std::string(d.killed) == "sender";
    note_event("run");
    other_process sender("sender", where, sender_dies ? static_cast<int>(d.at) : -1);
    other_process receiver("receiver", where, sender_dies ? -1 : static_cast<int>(d.at));
    const std::string one = sender.verdict(), two = receiver.verdict();
    EXPECT_EQ(sender_dies ? one : two, "killed");
    EXPECT_EQ(sender_dies ? two : one, d.survivor);
    std::printf("  %-7s %-17s %s\n", d.killed, name_of(d.at), (sender_dies ? two : one).c_str());
  }
}

// Then the sender cannot tell whether the receiver is dead, which matters only if it dies.
TEST_F(handoff_test, a_receiver_that_cannot_open_its_pidfd_gets_the_memory) {
  const std::string where = new_place();
  other_process sender("sender", where), receiver("receiver without descriptors", where);
  EXPECT_EQ(sender.verdict(), "not owner");
  EXPECT_EQ(receiver.verdict(), "owner");
}

TEST_F(handoff_test, memory_of_a_dead_receiver_whose_pidfd_is_0_is_taken_back) {
  const std::string where = new_place();
  other_process sender("sender", where);
  other_process receiver("receiver without input", where, static_cast<int>(step::committed));
  EXPECT_EQ(sender.verdict(), "owner");
  EXPECT_EQ(receiver.verdict(), "killed");
}

TEST_F(handoff_test, an_address_in_use_is_an_error_on_both_sides) {
  task t(dev());
  auto [mine, others] = connected();
  result<sent_memory> sent = tl::unexpected<error>(error{});
  std::thread sender([&, &to = mine] { sent = send(dev(), to, both); });
  const auto received = receive(dev(), others);  // in the process that uses the addresses
  sender.join();
  EXPECT_TRUE(fails_with(outcome(received), errc::busy, "handoff::receive"));
  EXPECT_EQ(received.error().value, weights_at);
  EXPECT_NE(checkpoint::find_mapping_owner({device_address(weights_at), page()}), "");
  EXPECT_EQ(checkpoint::find_mapping_owner({device_address(far_away + 3 * apart), page()}), "");
  EXPECT_TRUE(fails_with(outcome(sent), errc::busy, "handoff::send"));
  EXPECT_EQ(sent.error().value, weights_at);
  EXPECT_EQ(sent.error().unit, error_unit::address);
  EXPECT_NE(sent.error().detail().cause.find("handoff::receive: "), std::string::npos);
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handoff_test, pages_that_cannot_be_exported_are_refused_first) {
  task t(dev(), handle_type::none);
  auto [mine, others] = connected();
  result<restored_memory> received = tl::unexpected<error>(error{});
  std::thread receiver([&, &from = others] { received = receive(dev(), from); });
  const auto sent = send(dev(), mine, both);
  receiver.join();
  EXPECT_TRUE(fails_with(outcome(sent), errc::not_supported, "handoff::send"));
  EXPECT_EQ(sent.error().value, weights_at);
  EXPECT_TRUE(fails_with(outcome(received), errc::not_supported, "handoff::receive"));
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handoff_test, a_peer_that_is_not_allowed_is_refused) {
  task t(dev());
  auto [mine, others] = connected();
  handoff_options options;
  peer_credentials seen;
  options.allow = [&](const peer_credentials &p) {
    seen = p;
    return false;
  };
  EXPECT_TRUE(
      fails_with(outcome(send(dev(), mine, both, options)), errc::not_supported, "handoff::send"));
  EXPECT_EQ(seen.pid, ::getpid());
  EXPECT_EQ(seen.uid, ::geteuid());
  EXPECT_TRUE(fails_with(outcome(receive(dev(), others)), errc::not_supported, "handoff::receive"));
}

TEST_F(handoff_test, a_peer_in_another_pid_namespace_is_connected) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const owned_fd mine(ends[0]), others(ends[1]);
  constexpr int no_namespace = 77;
  const auto wait_for = [](pid_t pid) {
    int how = 0;
    ::waitpid(pid, &how, 0);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  };
  const pid_t outside = ::fork();
  if (outside == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(no_namespace);
    const pid_t inside = ::fork();  // the first process that is in the new namespace
    if (inside == 0) {
      // It has no name for the process that made the pair.
      const auto got = connection::adopt(owned_fd(::dup(mine.get())));
      ::_exit(!got ? 1 : got->peer().pid != 0 ? 2 : 0);
    }
    ::_exit(wait_for(inside));
  }
  const int said = wait_for(outside);
  if (said == no_namespace) GTEST_SKIP() << "this machine permits no PID namespace";
  EXPECT_EQ(said, 0);
}

TEST_F(handoff_test, a_socket_without_a_peer_is_not_adopted) {
  const auto got = connection::adopt(owned_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  ASSERT_FALSE(got);
  EXPECT_TRUE(got.error().is(errc::invalid_argument));
}

TEST_F(handoff_test, timeout_and_cancelling_abort_a_handoff) {
  task t(dev());
  handoff_options options;
  options.timeout = 30ms;
  {
    auto [mine, others] = connected();
    EXPECT_TRUE(fails_with(outcome(send(dev(), mine, both, options)), errc::busy, "handoff::send"));
  }
  std::stop_source stop;
  options.timeout = 60s;
  options.cancel = stop.get_token();
  auto [mine, others] = connected();
  stop.request_stop();
  EXPECT_TRUE(fails_with(outcome(send(dev(), mine, both, options)), errc::operation_canceled,
                         "handoff::send"));
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handoff_test, unknown_tags_and_pages_used_outside_are_refused) {
  task t(dev());
  const auto refused = [&](const std::vector<std::string> &tags, errc c) {
    auto [mine, others] = connected();
    std::thread receiver([&, &from = others] { EXPECT_FALSE(receive(dev(), from)); });
    EXPECT_TRUE(fails_with(outcome(send(dev(), mine, tags)), c, "handoff::send"));
    receiver.join();
  };
  refused({"unknown"}, errc::invalid_argument);
  refused({}, errc::invalid_argument);
  reservation_options where;
  where.tag = "elsewhere";
  auto block = reservation::create(dev(), page(), where);
  ASSERT_TRUE(block);
  const auto first = dev().space().mappings({device_address(weights_at), page()});
  auto again = mapping::create(*block, 0, first.front().backing);
  ASSERT_TRUE(again);
  refused(both, errc::busy);
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handoff_test, invalid_messages_are_refused) {
  std::mt19937 dice(7);
  const hello sender{role::sender, dev().uuid(), page()};
  checkpoint::memory_layout layout;
  layout.blocks.push_back({{device_address(weights_at), 4 * page()}, "weights"});
  layout.pages.push_back({page(), {{location_kind::device, -1}, handle_type::posix_fd, false}});
  layout.access.push_back({{{location_kind::device, -1}, access_mode::read_write}});
  layout.places.push_back({device_address(weights_at), 0, 0});
  const std::vector<std::byte> good = encode(layout);
  ASSERT_TRUE(checkpoint::decode_layout(good));
  ASSERT_TRUE(check(*checkpoint::decode_layout(good), page()));
  // Every flipped bit and every length: refused, or another valid layout.
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    if (const auto read = checkpoint::decode_layout(bad)) [[maybe_unused]]
      const status s = check(*read, page());
  }
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(checkpoint::decode_layout({good.data(), n})) << n;
  }
  // A sender that greets correctly and continues with invalid messages.
  for (int round = 0; round < 60; ++round) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    auto from = connection::adopt(owned_fd(ends[1]));
    ASSERT_TRUE(from);
    {
      auto bad = connection::adopt(owned_fd(::dup(ends[0])));
      ASSERT_TRUE(bad);
      const owned_fd raw(ends[0]);
      ASSERT_TRUE(bad->send(1, encode(sender), {}, 1s, {}));
      std::vector<std::byte> junk(1 + dice() % 200);
      for (std::byte &b : junk) b = static_cast<std::byte>(dice());
      const int fd = raw.get();
      if (round % 3 == 0) {
        ASSERT_GT(::write(raw.get(), junk.data(), junk.size()), 0);
      } else if (round % 3 == 1) {
        ASSERT_TRUE(bad->send(2, junk, {&fd, 1}, 1s, {}));
      } else {
        ASSERT_TRUE(bad->send(2, good, {&fd, 1}, 1s, {}));  // the descriptor is no ownership word
      }
    }
    const auto received = receive(dev(), *from);
    ASSERT_FALSE(received);
    EXPECT_EQ(dev().space().stats().live_blocks, 0u);
  }
}

// With and without a descriptor, which the message never has.
TEST_F(handoff_test, a_commit_that_was_not_made_is_refused) {
  task t(dev());
  for (const bool with_fd : {false, true}) {
    pair ends = connected();
    const int fd = ends.others.fd();
    bool offered = false;
    std::thread receiver([&] {
      const auto said = [&](kind k, std::span<const std::byte> body, std::span<const int> fds) {
        return ends.others.send(static_cast<std::uint16_t>(k), body, fds, 30s, {});
      };
      const auto heard = [&](kind k) {
        const auto m = ends.others.receive(checkpoint::largest_layout, 30s, {});
        return m && m->kind == static_cast<std::uint16_t>(k);
      };
      offered = said(kind::hello, encode(hello{role::receiver, dev().uuid(), page()}), {}) &&
                heard(kind::hello) && heard(kind::layout) && heard(kind::pages) &&
                said(kind::ready, {}, {}) && heard(kind::offer) &&
                said(kind::committed, {}, {&fd, with_fd ? 1U : 0U});
    });
    const auto sent = send(dev(), ends.mine, both, options());
    receiver.join();
    EXPECT_TRUE(offered);
    const std::uint64_t received = with_fd ? static_cast<std::uint64_t>(kind::committed) : 0;
    EXPECT_TRUE(fails_with(outcome(sent), errc::corrupt, "handoff::send", received, received))
        << "with " << with_fd << " descriptors";
    EXPECT_EQ(task::wrong(dev()), "");
  }
}

// Regression: the sender took back memory that the receiver had, because what it had been given as the
// receiver's pidfd was readable: /dev/null, or the pidfd of another process, which had ended.
TEST_F(handoff_test, what_is_no_pidfd_of_the_receiver_says_nothing_about_it) {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  const int ended = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  if (ended < 0) GTEST_SKIP() << "the kernel has no pidfd";
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  for (const int fd : {null, ended}) {
    task t(dev());
    std::optional<connection> theirs;
    pair ends = connected();
    theirs.emplace(std::move(ends.others));
    bool committed = false;
    std::thread receiver([&] {
      const auto said = [&](kind k, std::span<const std::byte> body, std::span<const int> fds) {
        return theirs->send(static_cast<std::uint16_t>(k), body, fds, 30s, {});
      };
      const auto heard = [&](kind k) -> result<checkpoint::socket_message> {
        auto m = theirs->receive(checkpoint::largest_layout, 30s, {});
        EXPECT_TRUE(m && m->kind == static_cast<std::uint16_t>(k));
        return m;
      };
      if (!said(kind::hello, encode(hello{role::receiver, dev().uuid(), page()}), {})) return;
      if (!heard(kind::hello)) return;
      auto layout = heard(kind::layout);
      if (!layout || layout->fds.size() != 1) return;
      auto word = ownership_word::open(std::move(layout->fds.front()));
      if (!word || !heard(kind::pages) || !said(kind::ready, {}, {&fd, 1})) return;
      committed = heard(kind::offer) && word->commit();
      theirs.reset();  // it goes on with the memory, and says nothing
    });
    const auto sent = send(dev(), ends.mine, both, options());
    receiver.join();
    ASSERT_TRUE(committed);
    EXPECT_TRUE(sent) << sent.error().message();
    EXPECT_EQ(dev().space().stats().mapped_bytes, page()) << "what does not belong to the task";
  }
  ::close(null);
  ::close(ended);
  ::waitpid(child, nullptr, 0);
}

TEST_F(handoff_test, an_announced_size_over_the_limit_is_refused) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const owned_fd raw(ends[0]);
  auto from = connection::adopt(owned_fd(ends[1]));
  ASSERT_TRUE(from);
  const std::array<std::uint32_t, 4> head{0x4f484d53, 1U | 2U << 16, 0xfffffff0U, 0};
  ASSERT_EQ(::write(raw.get(), head.data(), sizeof head), static_cast<ssize_t>(sizeof head));
  EXPECT_TRUE(fails_with(outcome(from->receive(1 << 20, 1s, {})), errc::corrupt,
                         "socket_channel::receive", 0xfffffff0U, 1 << 20));
}

}  // namespace
}  // namespace stillmap::handoff::testing
