// status, suspend, resume, snapshot, restore and handoff, of a process that can be asked.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/support/buffer_test.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

using control::testing::is_whole;
using control::testing::new_place;
using control::testing::weights_and_cache;

class task_commands : public command_test {
 protected:
  void SetUp() override {
    command_test::SetUp();
    if (IsSkipped()) return;
    device_.emplace(open_device());
    if (!device_->capabilities().vmm) GTEST_SKIP() << "this device has no pages to take away";
    memory_.emplace(weights_and_cache(*device_));
    where_ = new_place();
    control::server_options how;
    how.task.go_on = [this](auto) { ++went_on_; };
    auto made = control::server::start(*device_, where_, how);
    ASSERT_TRUE(made) << made.error().message();
    server_ = std::move(*made);
  }
  void TearDown() override {
    if (taker_ > 0) {
      ::kill(taker_, SIGKILL);
      ::waitpid(taker_, nullptr, 0);
    }
    server_.reset();
    memory_.reset();
    device_.reset();
    command_test::TearDown();
  }

  const device &dev() const { return *device_; }
  std::size_t page() const { return dev().capabilities().page_bytes; }
  std::string file(const char *name) const { return (folder_ / name).string(); }
  void expect(const ran &r, int status, std::initializer_list<std::string> says) const {
    EXPECT_EQ(r.status, status) << r.out << r.err;
    const std::string &text = status == 0 ? r.out : r.err;
    for (const std::string &s : says) {
      EXPECT_NE(text.find(s), std::string::npos) << "'" << s << "' in:\n" << text;
    }
  }

  // stillmap handoff take, as a process of its own whose output is in `taken`.
  void start_taker(const std::string &where, const std::string &more = "") {
    const std::string command = program(), out = file("taken");
    taker_ = ::fork();
    if (taker_ != 0) return;
    ::execl("/bin/sh", "sh", "-c",
            ("exec '" + command + "' handoff take '" + where + "' " + more + " >'" + out + "' 2>'" +
             out + ".err' </dev/null")
                .c_str(),
            static_cast<char *>(nullptr));
    ::_exit(127);
  }
  int ended() {
    int how = 0;
    ::waitpid(taker_, &how, 0);
    taker_ = -1;
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  }
  // What it printed, once it has.
  std::string taken() const {
    for (;;) {
      const std::string text = content(file("taken"));
      if (text.find("stillmap: ok") != std::string::npos) return text;
      const std::string trouble = content(file("taken.err"));
      if (!trouble.empty()) return trouble;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::optional<device> device_;
  std::optional<checkpoint::restored_memory> memory_;
  std::string where_;
  std::unique_ptr<control::server> server_;
  std::atomic<int> went_on_{0};
  pid_t taker_ = -1;
};

TEST_F(task_commands, a_task_sleeps_and_wakes) {
  expect(
      run("status " + where_), 0,
      {"process " + std::to_string(::getpid()) + ": " + dev().name(), "weights", "cache", "live"});
  expect(run("suspend " + where_ + " weights --to file --folder '" + folder_.string() + "'"), 0,
         {"stillmap: ok: weights suspended: ", " at 4 places"});
  expect(run("status " + where_), 0, {"away, file"});
  expect(run("suspend " + where_ + " weights"), 1, {"suspended", "busy"});
  expect(run("status --json " + where_), 0,
         {"\"state\": \"away\"", "\"kept_in\": \"file\"", "\"doing\": null",
          "\"suspended_bytes\": " + std::to_string(4 * page())});
  expect(run("resume " + where_ + " weights --json"), 0,
         {"\"bytes\": " + std::to_string(4 * page())});
  EXPECT_TRUE(is_whole(dev()));
  EXPECT_EQ(went_on_, 1);
  expect(run("resume " + where_ + " weights"), 1, {"suspender::resume"});
  expect(run("suspend " + where_ + " nobody"), 1, {"nothing has this tag"});
}

TEST_F(task_commands, a_snapshot_is_made_and_can_be_restored) {
  const std::string first = file("a.smi"), second = file("b.smi");
  expect(run("snapshot " + where_ + " --tag weights --tag cache -o '" + first + "'"), 0,
         {"stillmap: ok: " + first, "of contents in", "read back and verified"});
  EXPECT_EQ(run("verify '" + first + "'").status, 0);
  put(dev(), device_address(control::testing::cache_at), pattern(page(), 9));
  expect(run("snapshot " + where_ + " --all --compress lz4 --parent '" + first + "' -o '" + second +
             "'"),
         0, {"chunks are the parent's"});
  EXPECT_EQ(went_on_, 2);
  expect(run("diff '" + first + "' '" + second + "'"), 1, {});
  expect(run("snapshot " + where_ + " --all -o '" + first + "'"), 1, {"a.smi"});
  // (Not the first one, which the second builds on.)
  const std::string third = file("c.smi");
  std::ofstream(third) << "in the way";
  expect(run("snapshot --json --replace " + where_ + " --all -o '" + third + "'"), 0,
         {"\"contents_bytes\": " + std::to_string(6 * page()), "\"verified\": true"});
  // Another process has the addresses free.
  expect(
      run("restore '" + second + "'"), 0,
      {"0x", "weights", "at the addresses that it had, every byte compared; it can be restored"});
  expect(run("restore --relocate --tag cache '" + second + "'"), 0, {"was 0x", "other addresses"});
  expect(run("restore --json --tag cache '" + second + "'"), 0,
         {"\"compared_bytes\": " + std::to_string(2 * page()), "\"given_to\": null"});
  expect(run("restore --tag nobody '" + second + "'"), 1, {"no memory of that tag"});
}

TEST_F(task_commands, memory_goes_from_an_image_to_a_holder_and_on) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string image = file("a.smi"), again = file("b.smi");
  // Of pages that nobody could export.
  server_.reset();
  memory_.reset();
  memory_.emplace(weights_and_cache(dev(), false));
  auto made = control::server::start(dev(), where_);
  ASSERT_TRUE(made);
  server_ = std::move(*made);
  expect(run("snapshot " + where_ + " --all -o '" + image + "'"), 0, {});
  server_.reset();
  memory_.reset();

  const std::string holder = new_place();
  start_taker(holder);
  expect(run("restore '" + image + "' --give " + holder), 0, {"now memory of process "});
  const std::string said = taken();
  EXPECT_NE(said.find("held, to be asked at " + holder + ".control"), std::string::npos) << said;
  EXPECT_NE(said.find("weights"), std::string::npos) << said;
  const std::string ask = holder + ".control";
  expect(run("suspend --wait 30 " + ask + " weights"), 0, {});
  expect(run("resume " + ask + " weights"), 0, {});
  expect(run("snapshot " + ask + " --all -o '" + again + "'"), 0, {});
  EXPECT_EQ(run("diff '" + image + "' '" + again + "'").status, 0);
  // On to a second one; with nothing left the first one ends.
  const std::string next = new_place();
  const pid_t first = taker_;
  start_taker(next, "--control " + next + "-2");
  const pid_t second = std::exchange(taker_, first);
  expect(run("handoff give " + ask + " --tag weights --tag cache --to " + next), 0,
         {"in 2 blocks (6 pages), now memory of process " + std::to_string(second)});
  EXPECT_EQ(ended(), 0);
  taker_ = second;
  expect(run("status --wait 30 " + next + "-2"), 0, {"weights", "live"});
  std::filesystem::remove(again);
  expect(run("snapshot " + next + "-2 --all -o '" + again + "'"), 0, {});
  EXPECT_EQ(run("diff '" + image + "' '" + again + "'").status, 0);
  ::kill(second, SIGTERM);
  EXPECT_EQ(ended(), 0);
}

TEST_F(task_commands, what_is_taken_can_be_given_back_to_the_device) {
  if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
  const std::string taker = new_place();
  start_taker(taker, "--free");
  expect(run("handoff give " + where_ + " --tag weights --json --to " + taker), 0,
         {"\"pages\": 4", "\"copied_bytes\": 0"});
  EXPECT_NE(taken().find("given back to the device"), std::string::npos);
  EXPECT_EQ(ended(), 0);
  EXPECT_EQ(dev().space().stats().mapped_bytes, 2 * page());
  EXPECT_EQ(run("handoff give " + where_ + " --tag weights --to " + taker).status, 1);
}

TEST_F(task_commands, who_is_not_there_is_named) {
  expect(run("status @nobody-at-all"), 1, {"nobody can be reached there"});
  expect(run("handoff take " + new_place() + " --wait 0.05 </dev/null"), 1,
         {"did not answer in time"});
  expect_usage("status", "socket");
  expect_usage("snapshot " + where_ + " -o x.smi", "either some tags, or --all");
  expect_usage("snapshot " + where_ + " --all --tag weights -o x.smi", "either some tags");
  expect_usage("suspend " + where_ + " weights --to moon", "moon");
  expect_usage("handoff", "subcommand");
  expect_usage("handoff give " + where_ + " --to @x", "--tag");
  expect_usage("status --wait -1 " + where_, "--wait");
}

}  // namespace
}  // namespace stillmap::testing
