// The simulated inference server: its requests, and that a long run leaves the allocator's
// statistics unchanged.
#include "bench/replay/serving/soak_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "bench/replay/simulator.h"
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
  EXPECT_EQ(*json, (std::vector<serving_request>{{0, 7, 2, {1, 2}}}));
}

TEST(RequestsTest, DatesAreSecondsApart) {
  const auto leap = parse_requests(
      "a,b,c\n2024-02-28 23:58:57.5,1,16777216\n2024-03-01T01:02:03,16777216,4\n", "m", false);
  ASSERT_TRUE(leap) << leap.error().message();
  EXPECT_EQ(leap->back().arrives, 25 * 3600 + 3 * 60 + 5.5);
  EXPECT_EQ(leap->front().answer, 1u << 24);
  const auto plain = parse_requests("a,b,c\n 10.25,1,\t2\n12.5,3,4", "m", false);
  ASSERT_TRUE(plain) << plain.error().message();
  EXPECT_EQ(*plain, (std::vector<serving_request>{{0, 1, 2}, {2.25, 3, 4}}));
}

TEST(RequestsTest, AFileThatIsNotThereIsNamed) {
  const auto read = read_requests("/no/such/file.csv");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, errc::invalid_argument);
  EXPECT_EQ(read.error().detail().cause, "/no/such/file.csv: cannot be read");
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
  EXPECT_EQ(said("a,b,c\n1,16777217,2\n", false), "file:2: no request: '1,16777217,2'");
  EXPECT_EQ(said("a,b,c\n1,2,16777217\n", false), "file:2: no request: '1,2,16777217'");
  EXPECT_EQ(said("a,b,c\ninf,2,3\n", false), "file:2: no request: 'inf,2,3'");
  for (const char *line :
       {"2023/11-16 18:15:46,2,3", "2023-11/16 18:15:46,2,3", "2023-11-16_18:15:46,2,3",
        "2023-11-16 18.15:46,2,3", "2023-11-16 18:15.46,2,3", "2023-11-16 18:15:4,2,3"}) {
    EXPECT_EQ(said(("a,b,c\n" + std::string(line)).c_str(), false),
              "file:2: no request: '" + std::string(line) + "'");
  }
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

TEST(RequestsTest, DrawnOnesHaveLengthsWithinBounds) {
  request_source drawn(1, 3);
  std::vector<std::uint32_t> prompts, answers;
  for (int i = 0; i < 20000; ++i) {
    const serving_request r = drawn.next();
    prompts.push_back(r.prompt);
    answers.push_back(r.answer);
  }
  std::sort(prompts.begin(), prompts.end());
  std::sort(answers.begin(), answers.end());
  EXPECT_NEAR(prompts[10000], 812, 40) << "exp(6.7)";
  EXPECT_NEAR(answers[10000], 148, 7) << "exp(5)";
  EXPECT_GE(prompts.front(), 8u);
  EXPECT_EQ(prompts.back(), 14000u);
  EXPECT_GE(answers.front(), 2u);
  EXPECT_EQ(answers.back(), 1500u);
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
  s.stop(ops);  // nothing is left to be freed
  EXPECT_EQ(s.running(), 0u);
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

TEST(ServerTest, NoStepBeginsAtTheEnd) {
  server s(tiny_server(), request_source({{0, 10, 3}, {100, 1, 1}}, 1));
  std::vector<serving_op> ops;
  s.serve(2, ops);  // one second for the prompt, and one for a step
  EXPECT_EQ(text_of(ops), "a0:100 a1:800 f1 a1:200 f1 a1:100 f1 a1:40 ");
  ops.clear();
  s.serve(2, ops);
  EXPECT_EQ(text_of(ops), "");
  s.serve(3, ops);
  EXPECT_EQ(text_of(ops), "a2:100 f2 ");
}

TEST(ServerTest, ACacheGrowsByAChunkWheneverItIsFull) {
  server s(tiny_server(), request_source({{0, 2, 10}, {100, 1, 1}}, 1));
  std::vector<serving_op> ops;
  s.serve(50, ops);
  EXPECT_EQ(text_of(ops),
            "a0:20 a1:200 f1 a1:100 f1 a1:40 a2:100 f2 a2:100 f2 a2:100 f2 a2:100 f2 a2:40 "
            "a3:100 f3 a3:100 f3 a3:100 f3 a3:100 f3 a3:40 a4:100 f4 f0 f1 f2 f3 ");
  EXPECT_EQ(s.answered(), 1u);
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
  s.stop(ops);
  EXPECT_EQ(text_of(ops), "f0 f1 f2 f3 ") << "once";
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

// The samples of a run add up to the only sample of another: nothing is counted twice.
TEST_F(SoakTest, EachSampleHasTheFiguresOfItsTime) {
  ASSERT_DONE(become_machine(driver(), "h200", false));  // with a table of costs
  const device d = open_device();
  server s(small_server(), request_source(5, 2)), same(small_server(), request_source(5, 2));
  soak_options o;
  o.seconds = 1800;
  o.sample_seconds = 700;
  soak_sample sum;
  std::vector<double> ends;
  const auto r = soak(d, s, o, [&](const soak_sample &sample) {
    ends.push_back(sample.ends);
    sum.answered += sample.answered;
    sum.ops += sample.ops;
    sum.calls += sample.calls;
    sum.modelled_us += sample.modelled_us;
    sum.moved += sample.moved;
    sum.recalled += sample.recalled;
    EXPECT_EQ(sum.answered, s.answered());
    EXPECT_EQ(sample.live, s.live_bytes());
    EXPECT_GE(sample.committed, sample.live);
    EXPECT_EQ(sample.behind, s.behind());
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

  o.sample_seconds = 1e9;
  const auto whole = soak(d, same, o);
  ASSERT_DONE(whole);
  ASSERT_EQ(whole->samples.size(), 1u);
  const soak_sample &all = whole->samples[0], &last = r->samples[2];
  EXPECT_EQ(all.ends, 1800);
  EXPECT_EQ(sum.answered, all.answered);
  EXPECT_EQ(sum.ops, all.ops);
  EXPECT_EQ(sum.calls, all.calls);
  EXPECT_GT(sum.calls, 0u);
  EXPECT_NEAR(sum.modelled_us, all.modelled_us, 1);
  EXPECT_GT(sum.modelled_us, 0);
  EXPECT_EQ(sum.moved, all.moved);
  EXPECT_GT(sum.moved, 0u);
  EXPECT_EQ(sum.recalled, all.recalled);
  EXPECT_EQ(last.aliased, all.aliased);
  EXPECT_GT(last.aliased, 0u);
  EXPECT_EQ(last.host_bytes, all.host_bytes);
  EXPECT_GT(last.host_bytes, 0u);
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
