// A task that has attached memory is handed to another process: its own memory moves, and what was published is
// attached there from the holder, at the same addresses.
#include "stillmap/checkpoint/handoff/handoff.h"
#include "tests/checkpoint/publication/fixture.h"
#include "tests/checkpoint/publication/processes.h"
#include "tests/support/far_away.h"

namespace stillmap::publication::testing {
namespace {

using namespace std::chrono_literals;

class handoff_references : public publication_fixture {
 protected:
  void SetUp() override {
    publication_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    if (stillmap::testing::hostcuda_control::config().rfind("profile=h200", 0) != 0) {
      GTEST_SKIP() << "what a layout carries is the same on every machine: one is enough";
    }
    if (role() == "receiver") run_receiver();
    restart_as(("profile=h200,machine=" + machine_).c_str());
  }
  static std::string socket_of(const std::string &holder) { return holder + "-handoff"; }
  [[noreturn]] void run_receiver() const {
    auto listens = handoff::listener::create(socket_of(meeting_place()));
    if (!listens) say_and_end(listens.error().message());
    say("listens");
    auto from = listens->accept(30s);
    if (!from) say_and_end(from.error().message());
    const auto memory = handoff::receive(dev(), *from);
    if (!memory) say_and_end(memory.error().message());
    const auto weights = attach(dev(), meeting_place(), memory->layout().published);
    if (!weights) say_and_end(weights.error().message());
    const bool whole = memory->bytes() == 2 * page() && weights->size() == 1 &&
                       holds(dev(), device_address(own_at), 2 * page(), 2) &&
                       holds(dev(), device_address(weights_at), 3 * page(), 1);
    say(whole ? "whole" : "not whole");
    wait_for_end();
  }

  const std::string machine_ = stillmap::testing::unique_name("handoff-references");
  static constexpr std::uint64_t weights_at = stillmap::testing::far_away,
                                 own_at = stillmap::testing::far_away + 0x10'0000'0000;
};

TEST_F(handoff_references, attached_memory_is_attached_where_the_task_goes) {
  {
    const growable_buffer weights = exportable(3, "weights", 1, weights_at);
    ASSERT_DONE(publish_tag("model", "weights"));
  }
  auto weights = attach(dev(), address_, "model");
  ASSERT_DONE(weights);
  const growable_buffer own = exportable(2, "own", 2, own_at);
  peer_process receiver("receiver", address_, machine_);
  ASSERT_EQ(receiver.line(), "listens");
  auto to = handoff::connection::connect(socket_of(address_), 30s);
  ASSERT_DONE(to);
  const auto sent = handoff::send(dev(), *to, std::vector<std::string>{"own", "weights"});
  ASSERT_DONE(sent);
  EXPECT_EQ(sent->bytes, 2 * page());
  EXPECT_EQ(receiver.line(), "whole");
  // This process is a reader, too, until it releases the memory.
  EXPECT_TRUE(holds(dev(), device_address(weights_at), 3 * page(), 1));
}

}  // namespace
}  // namespace stillmap::publication::testing
