// The limit counts what the driver serves, and gives it back when it is gone.
#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class limits : public testing::preload_test {
 protected:
  client_result run_case(const std::string &name, std::vector<std::string> variables = {}) const {
    client_setting setting;
    setting.variables = std::move(variables);
    setting.variables.push_back("STILLMAP_PRELOAD_LIMIT=" + std::to_string(64 << 20));
    client_result r = run("preload_limits", {name}, setting);
    EXPECT_TRUE(r.status == 0 || r.status == 77) << name << "\n" << r.err;
    EXPECT_EQ(r.err, "") << name;
    EXPECT_EQ(r.total("driver_live_bytes"), 0u) << r.statistics;
    EXPECT_EQ(r.total("driver_allocations"), r.total("driver_frees")) << r.statistics;
    return r;
  }
};

TEST_F(limits, count_what_the_program_maps_until_handles_and_mappings_are_gone) {
  if (run_case("own_mappings").status == 77) GTEST_SKIP() << "needs cuMemCreate";
}

TEST_F(limits, give_memory_that_is_kept_to_whoever_asks) {
  run_case("kept_memory");
}

// Regression: the driver had no memory for cuMemCreate that cuMemGetInfo said was free.
TEST_F(limits, of_the_device_give_memory_that_is_kept_as_well) {
  client_setting setting;
  setting.variables = {"HOSTCUDA=" + profile() + ",memory=64M"};
  const client_result r = run("preload_limits", {"kept_device"}, setting);
  if (r.status == 77) GTEST_SKIP() << "needs cuMemCreate";
  EXPECT_EQ(r.status, 0) << r.err;
}

TEST_F(limits, count_managed_memory) {
  run_case("managed_memory");
}

TEST_F(limits, count_arrays_by_their_descriptors) {
  run_case("arrays");
}

TEST_F(limits, count_pools_of_the_program) {
  if (run_case("other_pools").status == 77) GTEST_SKIP() << "needs memory pools";
}

TEST_F(limits, forget_memory_that_ended_with_its_context) {
  run_case("contexts");
}

TEST_F(limits, are_the_parents_alone) {
  run_case("forked");
}

TEST_F(limits, count_what_the_driver_serves_where_it_serves_all) {
  const client_result r = run_case("served_by_the_driver", {"STILLMAP_PRELOAD_ALLOCATOR=driver"});
  EXPECT_EQ(r.total("allocations"), 0u) << r.statistics;
  EXPECT_EQ(r.total("driver_allocations"), 2u) << r.statistics;
  EXPECT_EQ(r.total("driver_live_peak_bytes"), 44u << 20) << r.statistics;
  EXPECT_EQ(r.total("driver_out_of_memory"), 1u) << r.statistics;
  EXPECT_EQ(r.statistics.find("\"stillmap\""), std::string::npos) << r.statistics;
}

}  // namespace
}  // namespace stillmap
