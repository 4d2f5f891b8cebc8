// Programs that nobody changed share a device whose memory is too little for both.
#include <filesystem>
#include <random>

#include "stillmap/allocators/shared_quota.h"
#include "tests/preload/preload_test.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

class sharing : public testing::preload_test {
 protected:
  // With a limit of 64 MiB for both, on a device that has no more than `device_bytes`.
  client_result run_both(const std::string &what, bool shared,
                         const std::string &device_bytes = "80M") const {
    client_setting setting;
    setting.variables = {"HOSTCUDA=" + profile() + ",memory=" + device_bytes + ",machine=preload" +
                             std::to_string(machine_),
                         "STILLMAP_PRELOAD_STATS=" + file("statistics") + "%p"};
    if (shared) setting.variables.push_back("STILLMAP_PRELOAD_SHARE=" + quota() + ":64MiB");
    return run("preload_sharing", {what}, setting);
  }
  // Process ids of sandboxes are not different.
  const unsigned machine_ = std::random_device()();
  std::string quota() const { return file("quota"); }
  void expect_nothing_left() const {
    const auto stats = shared_quota::stats_of(quota());
    ASSERT_TRUE(stats) << stats.error().message();
    EXPECT_EQ(stats->reserved, 0u);
    EXPECT_TRUE(stats->participants.empty());
    for (const auto &entry :
         std::filesystem::directory_iterator(std::filesystem::path(quota()).parent_path())) {
      EXPECT_EQ(entry.path().string().find("quota."), std::string::npos) << entry.path();
    }
  }
  void expect_second_to_fail(const std::string &what) const {
    constexpr int out_of_memory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
    const client_result r = run_both(what, false);
    EXPECT_EQ(r.status, out_of_memory) << what << r.err;
  }
  void expect_both_end(const std::string &what) const {
    const client_result r = run_both(what, true);
    EXPECT_EQ(r.status, 0) << what << r.err;
    EXPECT_EQ(r.err, "") << what;
    expect_nothing_left();
  }
};

TEST_F(sharing, gives_memory_that_one_only_keeps_to_the_other) {
  expect_second_to_fail("cached");
  expect_both_end("cached");
}

TEST_F(sharing, gives_it_to_what_the_other_maps_itself) {
  const client_result r = run_both("mapped", true);
  if (r.status == 77) GTEST_SKIP() << "needs cuMemCreate";
  EXPECT_EQ(r.status, 0) << r.err;
  expect_nothing_left();
}

TEST_F(sharing, waits_until_the_other_has_freed_what_it_uses) {
  expect_second_to_fail("waits");
  expect_both_end("waits");
}

TEST_F(sharing, outlives_a_program_that_is_killed) {
  expect_both_end("killed");
}

TEST_F(sharing, is_bound_by_the_quota_where_the_device_has_more) {
  const client_result r = run_both("cached", true, "512M");
  EXPECT_EQ(r.status, 0) << r.err;
  const auto stats = shared_quota::stats_of(quota());
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->limit, 64u << 20);
}

TEST_F(sharing, that_is_not_possible_is_reported_and_the_program_runs_without) {
  for (const std::string &share : {std::string(":1G"), file("no folder/quota")}) {
    client_setting setting;
    setting.variables = {"STILLMAP_PRELOAD_SHARE=" + share};
    const client_result r = run("preload_linked", {}, setting);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.total("allocations"), 4u);
    EXPECT_NE(r.err, "");
  }
}

}  // namespace
}  // namespace stillmap
