// Memory handed over: contents, addresses and sharing, who owns it when either side dies at any
// step, and what is refused.
#include "stillmap/checkpoint/handoff/handoff.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/mapping.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/support/buffer_test.h"
#include "tests/support/sample_task.h"

namespace stillmap::handoff::testing {
namespace {

using namespace stillmap::testing::sample;

using namespace literals;
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

class handing_over : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    if (part() == "giver") giver();
    if (part() == "taker") taker();
  }

  static handoff_options options() {
    handoff_options how;
    how.wait = patience(30'000);
    how.at = die_if_told;
    return how;
  }

  [[noreturn]] void giver() {
    task t(dev());
    auto to = connection::connect(meeting_place(), patience(30'000));
    if (!to) say_and_end(to.error().message());
    const driver_counts before = counts();
    const auto given = give(dev(), *to, both, options());
    if (!copied_nothing(counts() - before)) say_and_end("copied");
    if (!given) {
      const std::string wrong = task::wrong(dev());
      say_and_end(wrong.empty() ? "owner" : wrong);
    }
    const address_space_stats books = dev().space().stats();
    const bool gone = books.mapped_bytes == page() && books.suspended_bytes == 7 * page() &&
                      given->unmapped && given->places == 7 && given->pages == 6;
    const bool rest = holds(dev(), device_address(other_at), page(), 7);
    say_and_end(!gone ? "still has some" : !rest ? "lost what it did not give" : "not owner");
  }

  [[noreturn]] void taker() {
    auto at = listener::create(meeting_place());
    if (!at) say_and_end(at.error().message());
    auto from = at->accept(patience(30'000));
    if (!from) say_and_end(from.error().message());
    const driver_counts before = counts();
    auto taken = take(dev(), *from, options());
    if (!copied_nothing(counts() - before)) say_and_end("copied");
    if (!taken) {
      const bool nothing = dev().space().stats().mapped_bytes == 0;
      say_and_end(nothing ? "not owner" : "kept some");
    }
    say_and_end(use(*taken));
  }

  std::string use(restored_memory &m) const {
    if (const std::string wrong = task::wrong(dev()); !wrong.empty()) return wrong;
    if (m.tagged("weights") !=
            std::vector<virtual_range>{{device_address(weights_at), 16 * page()}} ||
        m.tagged("cache").size() != 1 || m.bytes() != 6 * page()) {
      return "ranges differ";
    }
    // Still one page at two addresses, and another that is not to be written.
    put(dev(), device_address(weights_at + 16), pattern(64, 9));
    if (!holds(dev(), device_address(weights_at + 5 * page() + 16), 64, 9)) return "no alias";
    const context_guard guard(driver(), dev().context());
    if (driver().set_bytes_async(device_address(cache_at + page()), 1, 64, nullptr)) {
      return "a page that was read only can be written";
    }
    return "owner";
  }

  // Sandboxes share names, and their processes have the same numbers.
  static std::string new_place() {
    std::random_device random;
    return "@stillmap-test-" + std::to_string(random()) + '-' + std::to_string(random());
  }

  // A giver here, and whatever the test does at the other end.
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

TEST_F(handing_over, everything_is_there_and_nothing_was_copied) {
  const std::string where = new_place();
  other_process giver("giver", where);  // comes first, and waits for somebody who listens
  other_process taker("taker", where);
  EXPECT_EQ(giver.verdict(), "not owner");
  EXPECT_EQ(taker.verdict(), "owner");
}

struct death {
  const char *who;
  step at;
  const char *survivor;  // what the other one is then
};

// Before the ticket is taken the giver is the owner, dead or alive; afterwards the taker, unless it
// dies before it has said so: then the giver has it again.
TEST_F(handing_over, either_side_killed_at_every_step_leaves_one_owner) {
  const death all[] = {
      {"giver", step::greeted, "not owner"},    {"giver", step::layout_sent, "not owner"},
      {"giver", step::pages_sent, "not owner"}, {"giver", step::told_ready, "not owner"},
      {"giver", step::quiet, "not owner"},      {"giver", step::offered, "owner"},
      {"giver", step::told_taken, "owner"},     {"giver", step::given, "owner"},
      {"taker", step::greeted, "owner"},        {"taker", step::layout_received, "owner"},
      {"taker", step::reserved, "owner"},       {"taker", step::pages_received, "owner"},
      {"taker", step::mapped, "owner"},         {"taker", step::ready, "owner"},
      {"taker", step::offer_received, "owner"}, {"taker", step::taken, "owner"},
      {"taker", step::done, "not owner"},
  };
  std::printf("  killed  at                survivor\n");
  for (const death &d : all) {
    SCOPED_TRACE(std::string(d.who) + " killed at " + name_of(d.at));
    const std::string where = new_place();
    const bool giver_dies = std::string(d.who) == "giver";
    other_process giver("giver", where, giver_dies ? static_cast<int>(d.at) : -1);
    other_process taker("taker", where, giver_dies ? -1 : static_cast<int>(d.at));
    const std::string one = giver.verdict(), two = taker.verdict();
    EXPECT_EQ(giver_dies ? one : two, "killed");
    EXPECT_EQ(giver_dies ? two : one, d.survivor);
    std::printf("  %-7s %-17s %s\n", d.who, name_of(d.at), (giver_dies ? two : one).c_str());
  }
}

TEST_F(handing_over, an_address_that_is_taken_is_a_refusal_that_names_it) {
  task t(dev());
  auto [mine, others] = connected();
  result<given_memory> given = tl::unexpected<error>(error{});
  std::thread giver([&, &to = mine] { given = give(dev(), to, both); });
  const auto taken = take(dev(), others);  // here, where the giver has it
  giver.join();
  EXPECT_TRUE(fails_with(outcome(taken), errc::busy, "reservation::create"));
  EXPECT_EQ(taken.error().value, weights_at);
  EXPECT_NE(checkpoint::find_mapping_owner({device_address(weights_at), page()}), "");
  EXPECT_EQ(checkpoint::find_mapping_owner({device_address(far_away + 3 * apart), page()}), "");
  EXPECT_TRUE(fails_with(outcome(given), errc::busy, "handoff::give"));
  EXPECT_EQ(given.error().value, weights_at);
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handing_over, what_cannot_be_exported_is_refused_before_anything_is_sent) {
  task t(dev(), handle_type::none);
  auto [mine, others] = connected();
  result<restored_memory> taken = tl::unexpected<error>(error{});
  std::thread taker([&, &from = others] { taken = take(dev(), from); });
  const auto given = give(dev(), mine, both);
  taker.join();
  EXPECT_TRUE(fails_with(outcome(given), errc::not_supported, "handoff::give"));
  EXPECT_EQ(given.error().value, weights_at);
  EXPECT_TRUE(fails_with(outcome(taken), errc::not_supported, "handoff::take"));
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handing_over, who_is_not_allowed_gets_nothing) {
  task t(dev());
  auto [mine, others] = connected();
  handoff_options how;
  peer seen;
  how.allow = [&](const peer &p) {
    seen = p;
    return false;
  };
  EXPECT_TRUE(
      fails_with(outcome(give(dev(), mine, both, how)), errc::not_supported, "handoff::give"));
  EXPECT_EQ(seen.pid, ::getpid());
  EXPECT_EQ(seen.uid, ::geteuid());
  EXPECT_TRUE(fails_with(outcome(take(dev(), others)), errc::not_supported, "handoff::take"));
}

TEST_F(handing_over, silence_and_cancelling_end_it) {
  task t(dev());
  handoff_options how;
  how.wait = patience(30);
  {
    auto [mine, others] = connected();
    EXPECT_TRUE(
        fails_with(outcome(give(dev(), mine, both, how)), errc::busy, "handoff::connection"));
  }
  std::stop_source stop;
  how.wait = patience(60'000);
  how.cancel = stop.get_token();
  auto [mine, others] = connected();
  stop.request_stop();
  EXPECT_TRUE(
      fails_with(outcome(give(dev(), mine, both, how)), errc::busy, "handoff::connection"));
  EXPECT_EQ(task::wrong(dev()), "");
}

TEST_F(handing_over, tags_that_nobody_has_and_memory_in_use_elsewhere_are_refused) {
  task t(dev());
  const auto refused = [&](const std::vector<std::string> &tags, errc c) {
    auto [mine, others] = connected();
    std::thread taker([&, &from = others] { EXPECT_FALSE(take(dev(), from)); });
    EXPECT_TRUE(fails_with(outcome(give(dev(), mine, tags)), c, "checkpoint::describe"));
    taker.join();
  };
  refused({"nobody's"}, errc::invalid_argument);
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

TEST_F(handing_over, garbage_is_recognised) {
  std::mt19937 dice(7);
  const hello giver{role::giver, dev().uuid(), page()};
  checkpoint::memory_layout layout;
  layout.blocks.push_back({{device_address(weights_at), 4 * page()}, "weights"});
  layout.pages.push_back({page(), {{location_kind::device, -1}, handle_type::posix_fd, false}});
  layout.access.push_back({{{location_kind::device, -1}, access_mode::read_write}});
  layout.places.push_back({device_address(weights_at), 0, 0});
  const std::vector<std::byte> good = encode(layout);
  ASSERT_TRUE(checkpoint::decode_layout(good));
  ASSERT_TRUE(check(*checkpoint::decode_layout(good), page()));
  // Every bit turned and every length: refused, or another layout that is one.
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    if (const auto read = checkpoint::decode_layout(bad)) [[maybe_unused]]
      const status s = check(*read, page());
  }
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(checkpoint::decode_layout({good.data(), n})) << n;
  }
  // A giver that greets well and goes on with something else.
  for (int round = 0; round < 60; ++round) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    auto from = connection::adopt(owned_fd(ends[1]));
    ASSERT_TRUE(from);
    {
      auto bad = connection::adopt(owned_fd(::dup(ends[0])));
      ASSERT_TRUE(bad);
      const owned_fd raw(ends[0]);
      ASSERT_TRUE(bad->send(1, encode(giver), {}, patience(1000), {}));
      std::vector<std::byte> junk(1 + dice() % 200);
      for (std::byte &b : junk) b = static_cast<std::byte>(dice());
      const int fd = raw.get();
      if (round % 3 == 0) {
        ASSERT_GT(::write(raw.get(), junk.data(), junk.size()), 0);
      } else if (round % 3 == 1) {
        ASSERT_TRUE(bad->send(2, junk, {&fd, 1}, patience(1000), {}));
      } else {
        ASSERT_TRUE(bad->send(2, good, {&fd, 1}, patience(1000), {}));  // and that is no ticket
      }
    }
    const auto taken = take(dev(), *from);
    ASSERT_FALSE(taken);
    EXPECT_EQ(dev().space().stats().live_blocks, 0u);
  }
}

TEST_F(handing_over, a_message_that_announces_too_much_takes_no_memory) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const owned_fd raw(ends[0]);
  auto from = connection::adopt(owned_fd(ends[1]));
  ASSERT_TRUE(from);
  const std::array<std::uint32_t, 4> head{0x4f484d53, 1U | 2U << 16, 0xfffffff0U, 0};
  ASSERT_EQ(::write(raw.get(), head.data(), sizeof head), static_cast<ssize_t>(sizeof head));
  EXPECT_TRUE(fails_with(outcome(from->receive(1 << 20, patience(1000), {})), errc::corrupt,
                         "handoff::connection", 0xfffffff0U, 1 << 20));
}

}  // namespace
}  // namespace stillmap::handoff::testing
