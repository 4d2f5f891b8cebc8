// The recorded training programs run in hardly more memory than what lives in them.
// docs/allocator_growth.md#new-pages-or-moved-ones
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "tests/system/traces/recorded_trace.h"

namespace stillmap::testing {
namespace {

using namespace stillmap::replay;

struct program {
  const char *trace;
  std::optional<unsigned> iterations;  // none: as recorded, because each is another
};

std::ostream &operator<<(std::ostream &out, const program &p) {
  return out << p.trace;
}

class least_memory : public recorded_trace_test, public ::testing::WithParamInterface<program> {
 protected:
  void SetUp() override { begin("unbacked"); }
};

// Regression: diffusion_unet. In its fourth iteration no request had been refused yet, so that its blocks
// still went to remembered places, between which too much was free in parts of pages.
TEST_P(least_memory, is_what_lives_and_half_a_percent) {
  std::optional<replay_plan> planned;
  ASSERT_NO_FATAL_FAILURE(plan(GetParam().trace, GetParam().iterations, planned));
  const target_kind limited = **find_target("stillmap");
  target_kind not_alone = limited;  // others have the rest of the device
  not_alone.has_limit = false;
  not_alone.make = [](const device &d, const target_options &given) {
    target_options without_limit = given;
    without_limit.limit = UINT64_MAX;
    return make_stillmap(d, without_limit);
  };
  replay_options o;
  o.capacity = capacity(*planned, 1.005);
  for (const target_kind *const kind : {&limited, &std::as_const(not_alone)}) {
    o.kind = kind;
    const auto r = run(open_device(), *planned, o);
    ASSERT_TRUE(r) << r.error().message();
    EXPECT_FALSE(r->oom) << r->where_oom << (kind->has_limit ? "" : ", without a limit");
  }
}

INSTANTIATE_TEST_SUITE_P(recorded, least_memory,
                         ::testing::Values(program{"diffusion_unet", 8}, program{"gpt2_large", 8},
                                           program{"gpt2_large_checkpointed", 8},
                                           program{"gpt2_medium_parallel", 8},
                                           program{"gpt2_medium_variable", {}},
                                           program{"llama_1b", 8}, program{"llama_1b_variable", {}},
                                           program{"llama_3b_checkpointed", 8},
                                           program{"resnet152", 8}, program{"resnet50", 8}));

}  // namespace
}  // namespace stillmap::testing
