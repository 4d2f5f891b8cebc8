// The callbacks of a control server, and of snapshots.
#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"
#include "tests/support/unique_name.h"

namespace stillmap::testing {
namespace {

struct task_log {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<int> refuse{STILLMAP_OK};
  void add(const char *what, const char *const *tags, std::size_t count) {
    const std::lock_guard lock(mutex);
    std::string line = what;
    for (std::size_t i = 0; i < count; ++i) line += std::string(" ") + tags[i];
    lines.push_back(line);
  }
};

class c_api_control : public device_test {};

TEST_F(c_api_control, its_callbacks_stop_and_resume_the_task) {
  c_world w(false);
  if (!w.vmm) GTEST_SKIP() << "needs VMM, which this device does not have";
  task_log log;
  auto options = sized<stillmap_control_options>();
  options.user = &log;
  options.suspender = w.suspender;
  options.quiesce = [](const char *const *tags, size_t count, stillmap_stop *stop, void *user) {
    auto &to = *static_cast<task_log *>(user);
    to.add(stillmap_stop_requested(stop) == 0 ? "quiesce" : "stopped", tags, count);
    return to.refuse.load();
  };
  options.resume = [](const char *const *tags, size_t count, void *user) {
    static_cast<task_log *>(user)->add("resume", tags, count);
  };
  stillmap_control *server = nullptr;
  const std::string address = "@" + unique_name("stillmap-c-control");
  ASSERT_TRUE(c_done(stillmap_control_create(w.device, address.c_str(), &options, &server)));
  const control::client operator_(address);
  const auto suspended = operator_.suspend({.tag = "buffer"});
  ASSERT_TRUE(suspended) << suspended.error().message();
  char *json = nullptr;
  ASSERT_TRUE(c_done(stillmap_suspender_get_tags(w.suspender, &json)));
  EXPECT_NE(std::string(json).find("\"buffer\""), std::string::npos) << json;
  stillmap_string_free(json);
  const auto resumed = operator_.resume("buffer");
  ASSERT_TRUE(resumed) << resumed.error().message();
  log.refuse = STILLMAP_BUSY;
  const auto refused = operator_.suspend({.tag = "buffer"});
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::busy)) << refused.error().message();
  EXPECT_TRUE(c_done(stillmap_control_destroy(server)));
  EXPECT_EQ(log.lines,
            (std::vector<std::string>{"quiesce buffer", "resume buffer", "quiesce buffer"}));
}

TEST_F(c_api_control, progress_can_cancel_a_snapshot) {
  c_world w(false);
  if (!w.vmm) GTEST_SKIP() << "needs VMM, which this device does not have";
  ASSERT_TRUE(c_done(stillmap_buffer_resize(w.buffer, 8 * w.page)));
  const std::string path =
      (std::filesystem::temp_directory_path() / unique_name("stillmap-c-cancel")).string();
  static const char *const tags[] = {"buffer"};
  auto options = sized<stillmap_save_options>();
  options.threads = 1;
  options.on_progress = [](uint64_t, uint64_t, void *) { return 1; };
  EXPECT_EQ(stillmap_snapshot_save(w.device, path.c_str(), tags, 1, &options, nullptr),
            STILLMAP_CANCELED)
      << c_message();
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace stillmap::testing
