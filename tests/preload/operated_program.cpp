#include "tests/preload/operated_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>
#include <utility>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/find_tasks.h"

namespace stillmap::testing {

operated_program::operated_program(std::vector<std::string> environment, int devices) {
  // It may die with a command unread: that is an answer of "", and no end of the test.
  std::signal(SIGPIPE, SIG_IGN);
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipes";
    return;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  pid_ = spawn({built_for_preload("preload_operated"), std::to_string(devices)},
               std::move(environment), actions);
  posix_spawn_file_actions_destroy(&actions);
  ::close(to[0]);
  ::close(from[1]);
  to_ = ::fdopen(to[1], "w");
  from_ = ::fdopen(from[0], "r");
  EXPECT_NE(pid_, -1) << "it cannot be started";
  std::istringstream ready(answer());
  std::string word;
  ready >> word >> constant_ >> bytes_;
  EXPECT_EQ(word, "ready");
}

operated_program::~operated_program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
}

// Tests beside this one may have processes of the same id, in PID namespaces of their own, and the names have a number
// behind it then.
std::string operated_program::address(int ordinal) const {
  const std::string name = "@stillmap-" + std::to_string(pid_) +
                           (ordinal != 0 ? "." + std::to_string(ordinal) : std::string());
  if (const auto known = addresses_.find(ordinal); known != addresses_.end()) return known->second;
  const auto all = control::find_tasks();
  for (const std::string &socket : all ? all->sockets : std::vector<std::string>()) {
    if (socket != name + ".control" && !socket.starts_with(name + "-")) continue;
    const auto server = checkpoint::socket_channel::connect(socket);
    if (server && server->peer().pid == pid_) return addresses_[ordinal] = socket;
  }
  return name + ".control";
}

std::string operated_program::answer() const {
  char line[256];
  if (std::fgets(line, sizeof line, from_) == nullptr) return {};
  std::string text = line;
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void operated_program::tell(const std::string &command) const {
  std::fputs((command + "\n").c_str(), to_);
  std::fflush(to_);
}

std::string operated_program::ask(const std::string &command) const {
  tell(command);
  return answer();
}

std::uint64_t operated_program::number(const std::string &command) const {
  const std::string text = ask(command);
  EXPECT_NE(text, "") << command << ": the program has ended";
  return text.empty() ? 0 : std::stoull(text);
}

bool operated_program::works() const {
  const std::uint64_t before = number("rounds");
  for (int i = 0; i < 10'000; ++i) {
    if (number("rounds") > before + 4) return number("errors") == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

int operated_program::end() {
  std::fclose(to_);
  to_ = nullptr;
  return wait();
}

int operated_program::wait() {
  return wait_for(std::exchange(pid_, -1));
}

tag_bytes bytes_in(const operated_program &p) {
  const auto s = p.as_operator().status();
  EXPECT_TRUE(s) << s.error().message();
  tag_bytes sum;
  for (const auto &t : s ? s->tags : std::vector<control::tag_status>()) {
    sum.mapped += t.mapped_bytes;
    sum.suspended += t.suspended_bytes;
  }
  return sum;
}

void expect_refused(const operated_program &p) {
  const auto suspended = p.as_operator().suspend(whole_program);
  ASSERT_FALSE(suspended);
  EXPECT_TRUE(suspended.error().is(errc::busy)) << suspended.error().message();
  EXPECT_TRUE(p.works()) << "it goes on";
}

void expect_suspended(const operated_program &p) {
  const auto suspended = p.as_operator().suspend(whole_program);
  ASSERT_TRUE(suspended) << suspended.error().message();
  const auto resumed = p.as_operator().resume("program");
  ASSERT_TRUE(resumed) << resumed.error().message();
  EXPECT_TRUE(p.works());
}

void operated_test::SetUp() {
  preload_test::SetUp();
  if (profile().find("vgpu-no-vmm") != std::string::npos)
    GTEST_SKIP() << "without VMM the driver serves the memory";
}

std::unique_ptr<operated_program> operated_test::start(int devices,
                                                       std::vector<std::string> variables) const {
  client_setting setting;
  setting.variables = std::move(variables);
  setting.variables.emplace_back("STILLMAP_PRELOAD_CONTROL=1");
  setting.variables.emplace_back("STILLMAP_PRELOAD_CONTROL_TIMEOUT=20000");
  return std::make_unique<operated_program>(environment(setting), devices);
}

std::unique_ptr<operated_program> operated_test::start_impatient() const {
  client_setting setting;
  setting.variables = {"STILLMAP_PRELOAD_CONTROL=1", "STILLMAP_PRELOAD_CONTROL_TIMEOUT=100"};
  return std::make_unique<operated_program>(environment(setting), 1);
}

bool operated_test::has_several_devices() {
  return profile().find("multi") != std::string::npos;
}

}  // namespace stillmap::testing
