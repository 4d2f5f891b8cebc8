// Handoff and migration of memory that kernels use; the peer is another process of this program.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/far_away.h"
#include "tests/system/gpu/kernels.h"

namespace stillmap::testing {
namespace {

using handoff::testing::meeting_place;
using handoff::testing::other_process;
using handoff::testing::part;
using handoff::testing::say_and_end;
using migration::testing::test_site;
using std::chrono::milliseconds;

constexpr std::size_t pages = 8;

class moving_under_kernels : public gpu_test {
 protected:
  void SetUp() override {
    gpu_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (part() == "receiver") receiver();
    if (part() == "destination") destination();
  }

  // Zeros, where another process has the addresses free too.
  growable_buffer far_buffer(const char *tag, handle_type exportable = handle_type::none) const {
    page_pool_options of;
    of.exportable = exportable;
    of.keep_free = 0;
    auto pool = page_pool::create(dev(), of);
    if (!pool) throw std::runtime_error(pool.error().message());
    buffer_options options;
    options.pools = {*pool};
    options.hint = device_address(far_away);
    options.reserve_bytes = pages * page();
    options.tag = tag;
    growable_buffer b = zeros(pages, std::move(options));
    if (b.address() != device_address(far_away)) throw std::runtime_error("the address is taken");
    return b;
  }

  // What the process that has it now does: a kernel that adds 1 to the words of all pages but the
  // first, and what the first word was.
  std::string goes_on(const checkpoint::restored_memory &m) {
    const device_address at(far_away);
    if (m.tagged("task") != std::vector<virtual_range>{{at, pages * page()}}) return "elsewhere";
    growable_buffer count = make();
    if (!count.resize(page())) return "no memory";
    write(count.address(), static_cast<std::uint32_t>((pages - 1) * page() / 4));
    const stream s = make_stream();
    launch_increment(at + page(), count.address(), s);
    if (const status done = s.synchronize(); !done) return done.error().message();
    for (std::size_t p = 1; p < pages; ++p) {
      if (read(at + p * page()) != 2) return "page " + std::to_string(p) + " differs";
      if (read(at + (p * page() + page() - 4)) != 2)
        return "page " + std::to_string(p) + " differs";
    }
    return "counted to " + std::to_string(read(at));
  }

  [[noreturn]] void receiver() {
    auto at = handoff::listener::create(meeting_place());
    if (!at) say_and_end(at.error().message());
    auto from = at->accept(std::chrono::milliseconds(30'000));
    if (!from) say_and_end(from.error().message());
    const auto taken = handoff::receive(dev(), *from);
    say_and_end(taken ? goes_on(*taken) : taken.error().message());
  }

  [[noreturn]] void destination() {
    const test_site m(meeting_place());
    auto r = migration::receiver::create(dev(), migration::testing::at_destination(m),
                                         migration::testing::destination_options(m));
    if (!r) say_and_end(r.error().message());
    const auto came = r->receive(std::chrono::milliseconds(60'000));
    say_and_end(came ? goes_on(came->memory) : came.error().message());
  }
};

TEST_F(moving_under_kernels, what_is_handed_over_is_computed_on) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string where = "@stillmap-gpu-" + std::to_string(std::random_device()());
  other_process there("receiver", where);
  growable_buffer b = far_buffer("task", handle_type::posix_fd), count = make();
  ASSERT_TRUE(count.resize(page()));
  write(count.address(), static_cast<std::uint32_t>(b.size() / 4));
  auto to = handoff::connection::connect(where, std::chrono::milliseconds(30'000));
  ASSERT_TRUE(to) << to.error().message();
  const stream s = make_stream();
  launch_increment(b.address(), count.address(), s);  // give() waits for it
  const driver_counts before = counts();
  const auto given = handoff::send(dev(), *to, std::vector<std::string>{"task"});
  ASSERT_TRUE(given) << given.error().message();
  EXPECT_EQ((counts() - before).bytes_to_host, 0u);
  EXPECT_EQ((counts() - before).bytes_on_device, 0u);
  EXPECT_EQ(there.verdict(), "counted to 1");
}

TEST_F(moving_under_kernels, what_a_kernel_writes_to_all_the_time_moves) {
  const test_site m;
  other_process there("destination", m.folder());
  growable_buffer b = far_buffer("task"), count = make();
  ASSERT_TRUE(count.resize(page()));
  write(count.address(), static_cast<std::uint32_t>((pages - 1) * page() / 4));
  // As frameworks' streams are: the default stream waits for it.
  const auto made = stream::create(dev(), /*non_blocking=*/false);
  ASSERT_TRUE(made);
  const stream &s = *made;
  launch_increment(b.address() + page(), count.address(), s);
  start_counting(b.address(), 20, s);
  const auto to = migration::testing::to_destination(m);
  migration::send_options how = migration::testing::source_options(m);
  how.max_downtime = std::chrono::milliseconds(100);
  bool ran_all_the_time = false;
  std::uint32_t counted = 0;
  how.quiesce = [&]() -> status {
    const auto idle = s.idle();
    ran_all_the_time = idle && !*idle;
    stop_counting();
    const status done = s.synchronize();
    counted = read(b.address());
    return done;
  };
  const auto sent = migration::sender(dev(), std::vector<std::string>{"task"}, how).send(*to);
  stop_counting();
  EXPECT_EQ(sent.owner, migration::owner::destination)
      << (sent.failure ? sent.failure->message() : "");
  EXPECT_TRUE(ran_all_the_time) << "the copying waited for the kernel";
  EXPECT_GT(counted, 1u);
  EXPECT_EQ(there.verdict(), "counted to " + std::to_string(counted));
}

}  // namespace
}  // namespace stillmap::testing
