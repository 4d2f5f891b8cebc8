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

// "a0:100" allocates slot 0, on a stream for prompts "a0:100@1"; f: free, u: use.
std::string text_of(const std::vector<serving_op> &ops) {
  std::string out;
  for (const serving_op &op : ops) {
    out += op.verb == serving_verb::allocate ? "a" : op.verb == serving_verb::free ? "f" : "u";
    out += std::to_string(op.slot);
    if (op.verb == serving_verb::allocate) out += ":" + std::to_string(op.bytes);
    if (op.stream != 0) out += "@" + std::to_string(op.stream);
    out += " ";
  }
  return out;
}

serving_options tiny_server() {
  serving_options o;
  o.token_bytes = 10;
  o.activation_bytes = 100;
  o.weight_bytes = 0;
  o.cache_bytes = 1000;
  o.chunk = 4;
  o.piece = 8;
  o.step_seconds = 1;
  o.prefill_tokens_a_second = 10;
  return o;
}

TEST(ServerTest, ServesEachRequestWhenItArrives) {
  serving_options options = tiny_server();
  for (const bool two_streams : {false, true}) {
    options.two_streams = two_streams;
    server s(options, request_source({{0.5, 10, 3}, {3, 1, 1}}, 1));
    const std::string on = two_streams ? "@1 " : " ", u0 = two_streams ? "u0 " : "",
                      u2 = two_streams ? "u2 " : "";
    std::vector<serving_op> ops;
    s.serve(0.4, ops);
    EXPECT_EQ(text_of(ops), "") << "nothing has arrived";
    EXPECT_EQ(s.behind(), 0);
    s.serve(2, ops);  // to 2.5: the prompt in two pieces, and one step
    EXPECT_EQ(text_of(ops),
              "a0:100" + on + "a1:800" + on + "f1 a1:200" + on + "f1 " + u0 + "a1:100 f1 a1:40 ");
    EXPECT_EQ(s.running(), 1u);
    EXPECT_EQ(s.live_bytes(), 140u);
    EXPECT_EQ(s.answered(), 0u);
    ops.clear();
    s.serve(3, ops);  // to 3.5: a step, for which there is room
    EXPECT_EQ(text_of(ops), "a2:100 f2 ");
    EXPECT_EQ(s.behind(), 0.5);
    ops.clear();
    s.serve(4, ops);  // to 4.6: the second request, and a step that answers both
    EXPECT_EQ(text_of(ops),
              "a2:10" + on + "a3:100" + on + "f3 " + u2 + "a3:200 f3 f0 f1 a1:40 f2 f1 ");
    EXPECT_EQ(s.running(), 0u);
    EXPECT_EQ(s.answered(), 2u);
    EXPECT_EQ(s.live_bytes(), 0u);
    EXPECT_EQ(s.peak_bytes(), 900u) << "the cache of a prompt, and its first piece";
    EXPECT_EQ(s.slots(), 4u);
  }
}

TEST(ServerTest, ARequestWaitsForTheCacheThatItMayNeed) {
  serving_options options = tiny_server();
  const std::vector<serving_request> pair = {{0, 4, 2}, {0, 4, 2}};
  const std::uint64_t both = std::uint64_t{2} * (4 + 2 + options.chunk) * options.token_bytes;
  for (const std::uint64_t cache : {both, both - 1, std::uint64_t{1}}) {
    options.cache_bytes = cache;
    server s(options, request_source(pair, 1));
    std::vector<serving_op> ops;
    s.serve(0.1, ops);
    EXPECT_EQ(s.running(), cache == both ? 2u : 1u) << cache;
    s.serve(2, ops);
    EXPECT_EQ(s.answered(), cache == both ? 2u : 1u) << "alone, a request has all of it";
  }
}

TEST(ServerTest, WeightsAreLoadedOnceAndStay) {
  serving_options options = tiny_server();
  options.weight_bytes = 1000;
  options.layers = 4;
  server s(options, request_source({{10, 1, 1}}, 1));
  std::vector<serving_op> ops;
  s.serve(1, ops);
  s.serve(2, ops);
  EXPECT_EQ(text_of(ops), "a0:250 a1:250 a2:250 a3:250 ");
  ops.clear();
  s.stop(ops);
  EXPECT_EQ(text_of(ops), "f0 f1 f2 f3 ");
  EXPECT_EQ(s.live_bytes(), 0u);
  EXPECT_EQ(s.peak_bytes(), 1000u);
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

TEST_F(SoakTest, EachSampleHasTheFiguresOfItsTime) {
  ASSERT_DONE(become_machine(driver(), "h200", false));  // with a table of costs
  const device d = open_device();
  server s(small_server(), request_source(5, 2));
  soak_options o;
  o.seconds = 1800;
  o.sample_seconds = 700;
  const driver_counts calls_before = driver().counts();
  const std::uint64_t modelled_before = *modelled_ns(driver());
  soak_sample sum;
  std::vector<double> ends;
  const auto r = soak(d, s, o, [&](const soak_sample &sample) {
    ends.push_back(sample.ends);
    sum.answered += sample.answered;
    sum.ops += sample.ops;
    sum.calls += sample.calls;
    sum.modelled_us += sample.modelled_us;
    EXPECT_EQ(sum.answered, s.answered());
    EXPECT_EQ(sample.live, s.live_bytes());
    EXPECT_GE(sample.committed, sample.live);
    EXPECT_EQ(sample.behind, s.behind());
    EXPECT_GT(sample.host_bytes, 0u);
    EXPECT_GT(sample.ops, 1000u);
    EXPECT_GT(sample.ns_per_op, 0);
    EXPECT_GE(sample.worst_ns_per_op, sample.ns_per_op) << "the mean of its minutes";
  });
  ASSERT_DONE(r);
  EXPECT_EQ(ends, (std::vector<double>{700, 1400, 1800}));
  ASSERT_EQ(r->samples.size(), 3u);
  EXPECT_EQ(r->ops, sum.ops);
  EXPECT_EQ(r->answered, sum.answered);
  EXPECT_EQ(r->refused, 0u);
  EXPECT_EQ(r->peak_live, s.peak_bytes());
  for (const soak_sample &sample : r->samples) EXPECT_LE(sample.committed, r->peak_committed);
  EXPECT_GT(r->samples[0].calls, 0u);
  EXPECT_GT(r->samples[0].modelled_us, 0);
  // No call is in two samples.
  EXPECT_LE(sum.calls, (driver().counts() - calls_before).total());
  EXPECT_LE(sum.modelled_us, static_cast<double>(*modelled_ns(driver()) - modelled_before) / 1000);
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
