// Replay plans: a trace flattened into slots, with iterations and repetitions.
#include "bench/replay/replay_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace stillmap::replay {
namespace {

trace parse(const std::string &lines) {
  auto read = read_trace("# stillmap-trace v1\n" + lines);
  EXPECT_TRUE(read) << (read ? "" : read.error().message());
  return read ? *read : trace{};
}

// Ops as text: "a0:100 f0 | " with slots, bytes and ends of iterations. Checks that each slot is
// taken when free and freed when taken, by a block of the same stream.
std::string shown(const replay_plan &p) {
  std::string text;
  std::map<std::uint32_t, std::uint32_t> live;
  for (const planned_op &op : p.ops) {
    const std::string slot = std::to_string(op.slot);
    switch (op.verb) {
      case trace_verb::allocate:
        EXPECT_TRUE(live.emplace(op.slot, op.stream).second) << text << slot;
        text += "a" + slot + ":" + std::to_string(op.bytes) + " ";
        break;
      case trace_verb::free:
        EXPECT_EQ(live.count(op.slot), 1u) << text << slot;
        EXPECT_EQ(live[op.slot], op.stream) << text << slot;
        live.erase(op.slot);
        text += "f" + slot + " ";
        break;
      case trace_verb::use:
        EXPECT_EQ(live.count(op.slot), 1u) << text << slot;
        text += "u" + slot + " ";
        break;
      case trace_verb::wait:
        text += "s" + std::to_string(op.stream) + ">" + slot + " ";
        break;
      case trace_verb::iteration:
        text += "| ";
        break;
      case trace_verb::fail:
        ADD_FAILURE() << "a plan allocates and frees in its place";
        break;
    }
  }
  return text;
}

std::string played(const std::string &lines, std::optional<unsigned> n, std::uint64_t shrink = 1) {
  const auto p = plan_replay(parse(lines), n, shrink);
  return p ? shown(*p) : p.error().detail().cause;
}

// The request is made again, and how the program would have gone on is not known.
TEST(ReplayPlan, ARequestThatFailedIsMadeAgainAndFreed) {
  const std::string lines = "a,0,5,0\no,7,1,100,3,95,2,60\nf,0\no,1,0,0,0,0,0,0\na,1,9,0\n";
  EXPECT_EQ(played(lines, std::nullopt), "a0:5 a1:7 f1 f0 a0:1 f0 a0:9 | ");
  EXPECT_EQ(played(lines, std::nullopt, 2), "a0:3 a1:4 f1 f0 a0:1 f0 a0:5 | ");
  const auto p = plan_replay(parse(lines), std::nullopt);
  EXPECT_EQ(p->peak_live_bytes, 12u);
  EXPECT_EQ(p->requests, 7u);
  EXPECT_EQ(p->failed_ops, (std::vector<std::size_t>{1, 4}));
}

TEST(ReplayPlan, ATraceAsItStands) {
  const std::string lines = "a,9,5,0\ni\na,8,6,1\nu,9,1\ns,0,1\nf,9\ni\na,7,1,0\nf,8\n";
  EXPECT_EQ(played(lines, std::nullopt), "a0:5 a1:6 u0 s0>1 f0 | a0:1 f1 ");
  const auto p = plan_replay(parse(lines), std::nullopt);
  EXPECT_EQ(p->slots, 2u);
  EXPECT_EQ(p->streams, 2u);
  EXPECT_EQ(p->iterations, 1u);
  EXPECT_EQ(p->requests, 6u);
  EXPECT_EQ(p->peak_live_bytes, 11u);
}

TEST(ReplayPlan, WithoutBoundariesAllOfItIsOneIteration) {
  EXPECT_EQ(played("a,1,5,0\na,2,6,0\nf,1\n", std::nullopt), "a0:5 a1:6 f0 | ");
  EXPECT_EQ(played("a,1,5,0\na,2,6,0\nf,1\n", 2), "a0:5 a1:6 f0 f1 | a1:5 a0:6 f1 f0 | ");
  EXPECT_EQ(played("a,1,5,0\ni\nf,1\n", 2), "a0:5 f0 | a0:5 f0 | ");
  EXPECT_EQ(played("", 2), "| | ");
}

TEST(ReplayPlan, FewerIterationsThanThereAre) {
  const std::string lines = "i\na,1,1,0\nf,1\ni\na,2,2,0\nf,2\ni\na,3,3,0\n";
  EXPECT_EQ(played(lines, 1), "a0:1 f0 | ");
  EXPECT_EQ(played(lines, 2), "a0:1 f0 | a0:2 f0 | ");
}

TEST(ReplayPlan, IterationsThatComeBackToWhereTheyWereAreRepeated) {
  // 1 stays; gradients (2, 3) of one iteration are freed in the next.
  const std::string lines = "a,1,10,0\ni\na,2,7,0\na,3,8,0\ni\nf,2\nf,3\na,4,8,0\na,5,7,0\ni\n";
  EXPECT_EQ(played(lines, 4),
            "a0:10 a1:7 a2:8 | f1 f2 a2:8 a1:7 | f1 f2 a2:8 a1:7 | f1 f2 a2:8 a1:7 | ");
  // Equal blocks on different streams do not stand for each other.
  const std::string crossed = "a,1,7,0\ni\nf,1\na,2,7,1\ni\n";
  EXPECT_EQ(played(crossed, 1), "a0:7 f0 a0:7 | ");
  EXPECT_NE(played(crossed, 2).find("none can be repeated"), std::string::npos);
}

TEST(ReplayPlan, SeveralIterationsMayBeOneRound) {
  const std::string lines = "i\na,1,1,0\ni\nf,1\na,2,2,0\ni\nf,2\na,3,3,0\ni\nf,3\na,4,1,0\ni\n";
  EXPECT_EQ(played(lines, 6), "a0:1 | f0 a0:2 | f0 a0:3 | f0 a0:1 | f0 a0:2 | f0 a0:3 | ");
}

TEST(ReplayPlan, WhatGrowsCannotBeRepeated) {
  const std::string grows = "i\na,1,1,0\ni\na,2,1,0\ni\n";
  EXPECT_EQ(played(grows, 2), "a0:1 | a1:1 | ");
  EXPECT_EQ(played(grows, 3),
            "--iterations 3: the trace has 2 and ends with other blocks live than any of them "
            "begins with, so none can be repeated");
  EXPECT_NE(played(grows, 0).find("--iterations 0"), std::string::npos);
}

TEST(ReplayPlan, FiguresAreOfAllThatIsPlayed) {
  const auto figures = [](const std::string &lines, std::optional<unsigned> n,
                          std::uint64_t shrink) {
    const auto p = plan_replay(parse(lines), n, shrink);
    EXPECT_TRUE(p);
    return std::to_string(p->iterations) + " iterations, " + std::to_string(p->requests) +
           " requests, " + std::to_string(p->streams) + " streams, " + std::to_string(p->slots) +
           " slots, " + std::to_string(p->peak_live_bytes) + " bytes";
  };
  const std::string one = "a,1,5,2\na,2,6,0\nu,1,1\ns,0,1\nf,1\n";
  EXPECT_EQ(figures(one, std::nullopt, 1),
            "1 iterations, 4 requests, 3 streams, 2 slots, 11 bytes");
  EXPECT_EQ(figures(one, 3, 1), "3 iterations, 15 requests, 3 streams, 2 slots, 11 bytes");
  EXPECT_EQ(figures(one, 3, 5), "3 iterations, 15 requests, 3 streams, 2 slots, 3 bytes");
  const std::string two = "a,9,1,0\ni\na,1,5,0\nf,1\ni\na,2,7,0\na,3,1,0\nf,3\nf,2\ni\n";
  EXPECT_EQ(figures(two, 1, 1), "1 iterations, 3 requests, 1 streams, 2 slots, 6 bytes");
  EXPECT_EQ(figures(two, 5, 1), "5 iterations, 19 requests, 1 streams, 3 slots, 9 bytes");
  EXPECT_EQ(figures("", std::nullopt, 1), "1 iterations, 0 requests, 1 streams, 0 slots, 0 bytes");
}

TEST(ReplayPlan, SizesCanBeShrunk) {
  EXPECT_EQ(played("a,1,5,0\na,2,8,0\na,3,1,0\n", std::nullopt, 4), "a0:2 a1:2 a2:1 | ");
}

}  // namespace
}  // namespace stillmap::replay
