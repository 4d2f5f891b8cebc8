#include "tests/tool/task_test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "stillmap/checkpoint/migration/credentials.h"

namespace stillmap::testing {
namespace {

constexpr int max_polls = 6000;  // a minute
void wait_for_poll() {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

void task_test::SetUp() {
  command_test::SetUp();
  if (IsSkipped()) return;
  device_.emplace(open_device());
  if (!device_->capabilities().vmm) GTEST_SKIP() << "this device has no pages to take away";
}

void task_test::TearDown() {
  for (const auto &[name, pid] : processes_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  stop_task();
  addresses_.clear();
  device_.reset();
  command_test::TearDown();
}

void task_test::expect(const ran &r, int status, std::initializer_list<std::string> says) const {
  EXPECT_EQ(r.status, status) << r.out << r.err;
  const std::string &text = status == 0 ? r.out : r.err;
  for (const std::string &s : says) {
    EXPECT_NE(text.find(s), std::string::npos) << "'" << s << "' in:\n" << text;
  }
}

void task_test::start_task(control::server_options options, bool exportable) {
  stop_task();
  memory_.emplace(control::testing::weights_and_cache(dev(), exportable));
  options.task.resume = [this](auto) { ++went_on_; };
  if (!options.task.released) options.task.released = [this](auto) { ++given_away_; };
  auto made = control::server::create(dev(), where_, std::move(options));
  ASSERT_TRUE(made) << made.error().message();
  server_.emplace(std::move(*made));
}

void task_test::stop_task() {
  server_.reset();
  memory_.reset();
}

void task_test::add_addresses(const std::string &tag, device_address hint) {
  reservation_options options;
  options.tag = tag;
  options.hint = hint;
  auto made = reservation::create(dev(), page(), options);
  ASSERT_TRUE(made) << made.error().message();
  addresses_.push_back(std::move(*made));
}

void task_test::start_process(const std::string &name, const std::string &arguments) {
  const std::string line = "exec '" + program() + "' " + arguments + " >'" + file(name) +
                           ".out' 2>'" + file(name) + ".err' </dev/null";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char *>(nullptr));
    ::_exit(127);
  }
  processes_[name] = pid;
}

int task_test::ended(const std::string &name) {
  int how = 0;
  const pid_t pid = processes_.at(name);
  for (int i = 0; ::waitpid(pid, &how, WNOHANG) == 0; ++i) {
    wait_for_poll();
    if (i != max_polls) continue;
    ADD_FAILURE() << name << " does not end:\n" << content(file(name + ".err"));
    ::kill(pid, SIGKILL);
  }
  processes_.erase(name);
  return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

std::string task_test::once(const std::string &name, const std::string &says) const {
  for (int i = 0; i < max_polls; ++i) {
    std::string text = content(file(name));
    if (text.find(says) != std::string::npos) return text;
    wait_for_poll();
  }
  ADD_FAILURE() << "no '" << says << "' in " << name << ":\n"
                << content(file(name)) << content(file(name.substr(0, name.rfind('.')) + ".err"));
  return "";
}

void task_test::make_credentials() const {
  for (const std::string who : {"here", "there"}) {
    ASSERT_EQ(run("task migrate credentials '" + file(who) + "' --name " + who).status, 0);
    std::filesystem::create_directory(file("records-" + who));
  }
}

std::string task_test::fingerprint(const char *who) const {
  const auto c = migration::load_credentials(file(who) + "/certificate.pem", "");
  return migration::fingerprint_of(c.value()).value();
}

std::string task_test::as(const char *who, const char *other) const {
  return " --credentials '" + file(who) + "' --peer-fingerprint " + fingerprint(other) + ' ';
}

void task_test::start_destination(const std::string &name, const std::string &arguments) {
  start_process(
      name, "task migrate receive 127.0.0.1:0 --control '" + control_of(name) + "' " + arguments);
}

std::string task_test::place_of(const std::string &name) const {
  const std::string text = once(name + ".err", "; our certificate: "), before = "waiting at ";
  const std::size_t at = text.find(before) + before.size();
  return text.substr(at, text.find(';', at) - at);
}

}  // namespace stillmap::testing
