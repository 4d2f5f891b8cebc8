// The simulated inference server: its requests, and that a long run leaves the allocator's
// statistics unchanged.
#include "stillmap/allocators/replay/serving/soak_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "stillmap/allocators/replay/device_memory_usage.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {
namespace {

using namespace replay;
constexpr std::uint64_t MiB = std::uint64_t{1} << 20, GiB = std::uint64_t{1} << 30;

serving_options small_server() {
  serving_options o;
  o.weight_bytes = GiB;
  o.layers = 4;
  o.cache_bytes = 8 * GiB;
  return o;
}

TEST(RequestsTest, ReadsBothFormatsAndSortsThem) {
  const auto csv = parse_requests(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:50.5,396,109\r\n"
      "2023-11-16 18:15:46,374,44\r\n",
      "a.csv", false);
  ASSERT_TRUE(csv) << csv.error().message();
  EXPECT_EQ(*csv, (std::vector<serving_request>{{0, 374, 44}, {4.5, 396, 109}}));
  const auto midnight =
      parse_requests("a,b,c\n2023-12-31T23:59:59,1,2\n2024-01-01T00:00:01,3,4,5\n", "m", false);
  ASSERT_TRUE(midnight) << midnight.error().message();
  EXPECT_EQ(midnight->back().arrives, 2);
  const auto json = parse_requests(
      R"({"timestamp": 1500, "input_length": 7, "output_length": 2, "hash_ids": [1, 2]})"
      "\n",
      "a.jsonl", true);
  ASSERT_TRUE(json) << json.error().message();
  EXPECT_EQ(*json, (std::vector<serving_request>{{0, 7, 2}}));
}

TEST(RequestsTest, EqualArrivalsKeepTheirOrder) {
  const auto csv = parse_requests("a,b,c\n5,1,9\n5,2,9\n2,3,9\n5,4,9\n", "a.csv", false);
  ASSERT_TRUE(csv) << csv.error().message();
  EXPECT_EQ(*csv, (std::vector<serving_request>{{0, 3, 9}, {3, 1, 9}, {3, 2, 9}, {3, 4, 9}}));
}

TEST(RequestsTest, SaysWhichLineIsNone) {
  const auto said = [](const char *text, bool json) {
    const auto r = parse_requests(text, "file", json);
    return r ? std::string("taken") : r.error().detail().cause;
  };
  EXPECT_EQ(said("a,b,c\n1,2,3\nx,2,3\n", false), "file:3: no request: 'x,2,3'");
  EXPECT_EQ(said("a,b,c\n1,2\n", false), "file:2: no request: '1,2'");
  EXPECT_EQ(said("a,b,c\n1,-2,3\n", false), "file:2: no request: '1,-2,3'");
  EXPECT_EQ(said("a,b,c\n2023-02-30 00:00:00,2,3\n", false),
            "file:2: no request: '2023-02-30 00:00:00,2,3'");
  EXPECT_EQ(said("a,b,c\n1,2,99999999\n", false), "file:2: no request: '1,2,99999999'");
  EXPECT_EQ(said("{\"timestamp\": 1}\n", true), "file:1: no request: '{\"timestamp\": 1}'");
  EXPECT_EQ(said("a,b,c\n", false), "file: no requests");
}

TEST(RequestsTest, AFileIsRepeatedAtItsOwnPace) {
  request_source twice({{0, 1, 1}, {10, 2, 2}}, 2);
  EXPECT_EQ(twice.next().arrives, 0);
  EXPECT_EQ(twice.next().arrives, 5);
  const serving_request again = twice.next();
  EXPECT_EQ(again.prompt, 1u);
  EXPECT_EQ(again.arrives, 7.5);
}

TEST(RequestsTest, DrawnOnesFollowTheSun) {
  request_source drawn(1, 3);
  std::map<int, int> by_hour;
  for (serving_request r = drawn.next(); r.arrives < 24 * 3600; r = drawn.next()) {
    ++by_hour[static_cast<int>(r.arrives / 3600)];
  }
  EXPECT_NEAR(by_hour[0], 1800, 200);
  EXPECT_NEAR(by_hour[12], 5400, 300);
}

// Each block is allocated once, freed once, and used in between; what is live is within the budget.
TEST(ServerTest, AsksForWhatItFreesAndKeepsToItsCache) {
  serving_options options = small_server();
  options.two_streams = true;
  server s(options, request_source(20, 1));
  std::vector<serving_op> ops;
  for (int minute = 1; minute <= 10; ++minute) s.serve(60.0 * minute, ops);
  EXPECT_GT(s.answered(), 500u);
  EXPECT_GT(s.running(), 0u);
  EXPECT_LE(s.peak_bytes(),
            options.weight_bytes + options.cache_bytes + options.piece * options.activation_bytes);
  s.stop(ops);
  EXPECT_EQ(s.live_bytes(), 0u);
  std::vector<std::uint64_t> live(s.slots());
  std::uint64_t uses = 0, blocks = 0, most_blocks = 0;
  for (const serving_op &op : ops) {
    ASSERT_LT(op.slot, live.size());
    if (op.verb == serving_verb::allocate) most_blocks = std::max(most_blocks, ++blocks);
    if (op.verb == serving_verb::free) --blocks;
    if (op.verb == serving_verb::allocate) {
      ASSERT_EQ(live[op.slot], 0u) << "allocated twice";
      ASSERT_NE(op.bytes, 0u);
      live[op.slot] = op.bytes;
    } else {
      ASSERT_NE(live[op.slot], 0u) << "used or freed when it is not there";
      if (op.verb == serving_verb::free) live[op.slot] = 0;
      uses += op.verb == serving_verb::use;
    }
  }
  EXPECT_EQ(*std::max_element(live.begin(), live.end()), 0u);
  EXPECT_EQ(s.slots(), most_blocks) << "the slot of a freed block is used again";
  EXPECT_GT(uses, 500u);
}

class SoakTest : public device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!on_hostcuda()) GTEST_SKIP() << "needs a machine without bytes";
    if (!open_device().capabilities().vmm)
      GTEST_SKIP() << "needs VMM, which this device does not have";
    become("profile=h200,unbacked");
  }
};

std::uint64_t books(const soak_sample &s) {
  return s.host_bytes;
}
std::uint64_t most_books(const soak_result &r, std::size_t from, std::size_t to) {
  std::uint64_t most = 0;
  for (std::size_t i = from; i < to; ++i) most = std::max(most, books(r.samples[i]));
  return most;
}

// The same hour again and again: after the first, nothing new comes up, so the books stay as they
// are. Blocks of several thousand sizes pass through.
TEST_F(SoakTest, TheBooksDoNotGrow) {
  std::vector<serving_request> hour;
  request_source drawn(0.6, 5);
  for (serving_request r = drawn.next(); r.arrives < 3600; r = drawn.next()) hour.push_back(r);
  for (const bool two_streams : {false, true}) {
    serving_options options = small_server();
    options.two_streams = two_streams;
    server s(options, request_source(hour, 1));
    soak_options o;
    o.seconds = 8 * 3600;
    const auto r = soak(open_device(), s, o);
    ASSERT_TRUE(r) << r.error().message();
    ASSERT_EQ(r->samples.size(), 8u);
    EXPECT_EQ(r->refused, 0u);
    EXPECT_EQ(r->violations, 0u);
    EXPECT_EQ(r->left_committed, 0u) << "memory stayed when all was free";
    EXPECT_GT(r->answered, 5000u);
    EXPECT_GT(r->ops, 100000u);
    // What never repeats may keep a quarter more while the device has room.
    EXPECT_LE(r->peak_committed, r->peak_live + r->peak_live / 4 + 16 * MiB);
    for (const soak_sample &sample : r->samples) EXPECT_GT(sample.resident, MiB);
    EXPECT_LE(most_books(*r, 4, 8), most_books(*r, 0, 4) + MiB) << "two_streams " << two_streams;
    EXPECT_LE(most_books(*r, 0, 8), 24 * MiB);
  }
}

// More than there is room for: some are turned away, and the rest goes on.
TEST_F(SoakTest, AServerThatPromisesTooMuchIsRefused) {
  server s(small_server(), request_source(20, 1));
  soak_options o;
  o.seconds = 600;
  o.sample_seconds = 300;
  o.limit = 3 * GiB;
  const auto r = soak(open_device(), s, o);
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_GT(r->refused, 0u);
  EXPECT_LE(r->peak_committed, 3 * GiB);
  EXPECT_EQ(r->left_committed, 0u);
}

}  // namespace
}  // namespace stillmap::testing
