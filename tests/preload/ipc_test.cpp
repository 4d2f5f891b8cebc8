// Legacy IPC of memory that Stillmap serves, between processes with the preload.
#include "tests/preload/preload_test.h"
#include "tests/support/unique_name.h"

namespace stillmap {
namespace {

using testing::client_result;
using testing::client_setting;

// Two processes that share devices.
client_setting on_shared_machine(const std::string &profile, const std::string &more = "") {
  client_setting setting;
  setting.variables = {"HOSTCUDA=" + profile + ",memory=512M" + more +
                       ",machine=" + testing::unique_name("preload_ipc")};
  return setting;
}

bool can_share(const std::string &profile) {
  return profile.find("no-vmm") == std::string::npos;
}

class ipc : public testing::preload_test, public ::testing::WithParamInterface<const char *> {};

TEST_P(ipc, is_as_with_memory_of_the_driver) {
  if (!can_share(profile())) GTEST_SKIP() << "needs mapped pages";
  const std::string name = GetParam();
  const bool several = profile().find("multi") != std::string::npos;
  if (name == "second_device" && !several) GTEST_SKIP() << "needs two devices";
  if (name != "second_device" && name != "contents" && several) GTEST_SKIP() << "as with one";
  const client_result r = run("preload_ipc", {name}, on_shared_machine(profile()));
  EXPECT_EQ(r.status, 0) << r.out << r.err;
  EXPECT_EQ(r.err, "");
}
INSTANTIATE_TEST_SUITE_P(case_of, ipc,
                         ::testing::Values("contents", "queries", "twice", "refused",
                                           "freed_before", "freed_meanwhile", "importer_death",
                                           "exporter_death", "exporter_exit", "stopped_exporter",
                                           "forked_exporter", "threads", "failing_calls",
                                           "few_descriptors", "hostile_clients", "another_user",
                                           "captures", "queued_work", "second_device",
                                           "handles_of_the_driver"),
                         [](const auto &c) { return std::string(c.param); });

// What these cases expect is so with the driver's own memory, too.
class driver_ipc : public testing::preload_test,
                   public ::testing::WithParamInterface<const char *> {};

TEST_P(driver_ipc, is_what_the_cases_expect) {
  if (!can_share(profile())) GTEST_SKIP() << "the same on every machine";
  client_setting plain = on_shared_machine(profile());
  plain.preloaded = false;
  const client_result r = run("preload_ipc", {GetParam()}, plain);
  EXPECT_EQ(r.status, 0) << r.out << r.err;
}
INSTANTIATE_TEST_SUITE_P(case_of, driver_ipc,
                         ::testing::Values("contents", "freed_before", "threads", "twice"),
                         [](const auto &c) { return std::string(c.param); });

class exportable_pages : public testing::preload_test {};

TEST_F(exportable_pages, start_a_thread_with_the_first_handle_only) {
  if (!can_share(profile())) GTEST_SKIP() << "needs mapped pages";
  const client_result r = run("preload_ipc", {"starts_late"}, on_shared_machine(profile()));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, "get 0 threads 1\n");
}

TEST_F(exportable_pages, are_not_where_the_program_wants_none_or_the_device_has_none) {
  client_setting off = on_shared_machine(profile());
  off.variables.emplace_back("STILLMAP_PRELOAD_IPC=0");
  const client_result r = run("preload_ipc", {"starts_late"}, off);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_EQ(r.out, can_share(profile()) ? "get 1 threads 0\n" : "get 0 threads 0\n");
}

// Each takes a file descriptor on the simulator: there, a device with more pages than the process may have open is
// shared only on demand.
TEST_F(exportable_pages, take_no_descriptors_that_the_program_may_need) {
  if (!can_share(profile())) GTEST_SKIP() << "needs mapped pages";
  client_setting large = on_shared_machine(profile());
  large.variables = {"HOSTCUDA=" + profile() + ",memory=128G,lazy"};
  EXPECT_EQ(run("preload_ipc", {"starts_late"}, large).out, "get 1 threads 0\n");
  large.variables.emplace_back("STILLMAP_PRELOAD_IPC=1");
  EXPECT_EQ(run("preload_ipc", {"starts_late"}, large).out, "get 0 threads 1\n");
}

TEST_F(exportable_pages, are_0_or_1) {
  client_setting wrong = on_shared_machine(profile());
  wrong.variables.emplace_back("STILLMAP_PRELOAD_IPC=yes");
  const client_result r = run("preload_ipc", {"starts_late"}, wrong);
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.err.find("STILLMAP_PRELOAD_IPC=yes"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace stillmap
