// The recorded programs at their real size, in little more memory than they need: no block loses a
// byte, and no work touches a page before its fence or after its time. hostcuda is lazy here, so
// that only what is checked costs memory. All of them in all capacities:
// tools/replay_table.py --verify.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tests/system/traces/recorded_trace.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::replay;

struct recorded {
  const char *trace;
  std::optional<unsigned> iterations;
  double capacity;  // times the peak of live bytes
  const char *schedule;
};

std::ostream &operator<<(std::ostream &out, const recorded &r) {
  return out << r.trace << " in " << r.capacity << " times, " << r.schedule;
}

class traces : public recorded_trace_test, public ::testing::WithParamInterface<recorded> {
 protected:
  void SetUp() override { begin(std::string("lazy,strict,schedule=") + GetParam().schedule); }
};

TEST_P(traces, keep_every_byte) {
  const recorded &what = GetParam();
  std::optional<replay_plan> planned;
  ASSERT_NO_FATAL_FAILURE(plan(what.trace, what.iterations, planned));
  const device d = open_device();
  replay_options o;
  o.kind = *find_target("stillmap");
  o.verify = check_depth::pages;
  o.capacity = capacity(*planned, what.capacity);
  const auto r = run(d, *planned, o);
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_FALSE(r->oom) << r->where_oom;
  EXPECT_EQ(r->violations, 0u);
  EXPECT_LE(r->peak_committed_bytes, *o.capacity);
  // At least the ends of every block.
  std::uint64_t least = 0;
  for (const planned_op &op : planned->ops) {
    if (op.verb == trace_verb::allocate) least += std::min<std::uint64_t>(op.bytes, 128);
  }
  EXPECT_GE(r->bytes_checked, least);
}

INSTANTIATE_TEST_SUITE_P(recorded, traces,
                         ::testing::Values(recorded{"resnet50", {}, 1.05, "threads"},
                                           recorded{"resnet50", 2, 1.005, "seeded:7"},
                                           recorded{"serving", {}, 1.05, "threads"},
                                           recorded{"serving", {}, 2, "seeded:3"},
                                           recorded{"gpt2_medium_parallel", 1, 1.05, "threads"},
                                           recorded{"gpt2_medium_parallel", 2, 1.05, "seeded:5"}));

}  // namespace
}  // namespace stillmap::testing
