// The audit log of a control server: a record of each request, and of those who may send none.
#include "stillmap/checkpoint/control/audit.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "tests/checkpoint/control/task.h"
#include "tests/support/unique_name.h"

namespace stillmap::control::testing {
namespace {

using namespace std::chrono_literals;
using checkpoint::backing_store;

class audit : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) make_memory();
  }
  void start_audited(server_options o = {}) {
    auto made = open_audit_log(log());
    ASSERT_TRUE(made) << made.error().message();
    if (!o.task.quiesce) o = written_down();
    o.audit = std::move(*made);
    start(std::move(o));
  }
  std::string log() const { return file("audit.jsonl"); }
  std::vector<std::string> lines() const {
    std::ifstream from(log());
    std::vector<std::string> out;
    for (std::string line; std::getline(from, line);) out.push_back(line);
    return out;
  }
};

void expect_has(const std::string &line, const std::string &key, const std::string &value) {
  EXPECT_NE(line.find('"' + key + "\": " + value), std::string::npos) << key << " in " << line;
}

TEST_F(audit, has_who_asked_for_what_and_what_came_of_it) {
  start_audited();
  ASSERT_DONE(ask().status());
  ASSERT_DONE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  ASSERT_DONE(ask().resume_all());
  ASSERT_DONE(ask().snapshot({.tags = {"cache", "weights"}, .path = file("a.smi")}));
  EXPECT_FALSE(ask().resume("nothing"));
  const auto all = lines();
  ASSERT_EQ(all.size(), 4u) << "a status has none";
  expect_has(all[0], "request", "\"suspend\"");
  expect_has(all[0], "tags", "[\"weights\"]");
  expect_has(all[0], "all", "false");
  expect_has(all[0], "outcome", "\"ok\"");
  expect_has(all[0], "error", "null");
  expect_has(all[0], "task", '"' + where() + '"');
  expect_has(all[0], "client_pid", std::to_string(::getpid()) + ',');
  expect_has(all[0], "client_uid", std::to_string(::getuid()) + ',');
  std::string name;
  std::getline(std::ifstream("/proc/self/comm"), name);
  expect_has(all[0], "client_program", '"' + name + '"');
  expect_has(all[1], "request", "\"resume\"");
  expect_has(all[1], "all", "true");
  expect_has(all[1], "tags", "[]");
  expect_has(all[2], "tags", "[\"cache\", \"weights\"]");
  expect_has(all[2], "subject", '"' + file("a.smi") + '"');
  expect_has(all[3], "request", "\"resume\"");
  expect_has(all[3], "outcome", "\"failed\"");
  EXPECT_NE(all[3].find("nothing"), std::string::npos) << all[3];
}

TEST_F(audit, has_requests_that_cannot_be_read) {
  start_audited();
  auto c = checkpoint::socket_channel::connect(where(), 10s);
  ASSERT_TRUE(c);
  const bytes wrong(3);
  ASSERT_TRUE(c->send(static_cast<std::uint16_t>(kind::suspend), wrong, {}, 10s, {}));
  ASSERT_TRUE(c->receive(max_response_bytes, 10s, {}));
  auto other = checkpoint::socket_channel::connect(where(), 10s);
  ASSERT_TRUE(other);
  ASSERT_TRUE(other->send(0x77, wrong, {}, 10s, {}));
  ASSERT_TRUE(other->receive(max_response_bytes, 10s, {}));
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  expect_has(all[0], "request", "\"suspend\"");
  expect_has(all[0], "outcome", "\"failed\"");
  expect_has(all[1], "request", "\"none\"");
  expect_has(all[1], "outcome", "\"failed\"");
}

TEST_F(audit, has_no_record_of_those_who_look_at_a_task_that_is_not_ready) {
  server_options o = written_down();
  o.not_ready = "it waits";
  start_audited(std::move(o));
  EXPECT_FALSE(ask().status());
  EXPECT_FALSE(ask().resume("weights"));
  const auto all = lines();
  ASSERT_EQ(all.size(), 1u);
  expect_has(all[0], "request", "\"resume\"");
}

// Any user can connect, a thousand times a second.
TEST_F(audit, has_few_records_of_many_that_are_refused) {
  server_options o = written_down();
  o.allow = [](const auto &) { return false; };
  start_audited(std::move(o));
  const auto began = std::chrono::steady_clock::now();
  constexpr std::uint64_t times = 200;
  for (std::uint64_t i = 0; i < times; ++i) EXPECT_FALSE(ask().resume("weights"));
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began);
  const auto all = lines();
  ASSERT_GE(all.size(), 1u);
  EXPECT_LE(all.size(), static_cast<std::size_t>(seconds.count()) + 1);
  expect_has(all[0], "request", "\"none\"");
  expect_has(all[0], "client_uid", std::to_string(::getuid()) + ',');
  std::this_thread::sleep_for(1s);  // since the last record at least
  EXPECT_FALSE(ask().resume("weights"));
  std::uint64_t counted = 0;
  for (const std::string &line : lines()) {
    counted += 1 + std::stoull(line.substr(line.find("\"refused_before\": ") + 18));
  }
  EXPECT_EQ(counted, times + 1);
}

TEST_F(audit, of_several_processes_has_whole_lines) {
  const auto write = *open_audit_log(log());
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      const auto other = *open_audit_log(log());
      audited_request r;
      r.tags.assign(100, "tag of " + std::to_string(t));
      for (int i = 0; i < 50; ++i) i % 2 == 0 ? write(r) : other(r);
    });
  }
  for (std::thread &t : writers) t.join();
  const auto all = lines();
  EXPECT_EQ(all.size(), 200u);
  for (const std::string &line : all) {
    EXPECT_TRUE(line.starts_with("{\"time\": \"") && line.ends_with('}')) << line;
  }
}

// What a client chooses is one line, and no end of a text.
TEST_F(audit, has_names_of_others_escaped) {
  const auto write = *open_audit_log(log());
  audited_request r;
  r.client_program = "a\"\n{\x1b";
  r.tags = {"\xff\n"};
  write(r);
  const auto all = lines();
  ASSERT_EQ(all.size(), 1u);
  expect_has(all[0], "client_program", R"("a\"\u000a{\u001b")");
}

TEST_F(audit, log_that_cannot_be_written_is_refused_at_once) {
  EXPECT_FALSE(*open_audit_log(""));
  EXPECT_FALSE(*open_audit_log(","));
  const auto no_folder = open_audit_log(log() + ',' + file("none/audit"));
  ASSERT_FALSE(no_folder);
  EXPECT_TRUE(no_folder.error().code == std::errc::no_such_file_or_directory);
  EXPECT_NE(no_folder.error().message().find(file("none/audit")), std::string::npos)
      << no_folder.error().message();
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(open_audit_log(file("pipe")));
  EXPECT_FALSE(open_audit_log(file("")));
  EXPECT_FALSE(open_audit_log("/dev/null"));
  EXPECT_FALSE(open_audit_log("journald:of-no-such-namespace"));
}

TEST_F(audit, log_that_is_gone_is_a_background_error_and_the_request_is_carried_out) {
  start_audited();
  std::filesystem::create_directory(file("old"));
  std::filesystem::rename(log(), file("old/audit"));
  ASSERT_DONE(ask().suspend({"weights", backing_store::pinned_host, ""}));
  EXPECT_EQ(lines().size(), 1u) << "as after a rotation";
  std::filesystem::remove(log());
  std::filesystem::create_directory(log());
  const std::uint64_t before = background_error_count();
  ASSERT_DONE(ask().resume("weights"));
  EXPECT_EQ(background_error_count(), before + 1);
  accept_background_errors();
  EXPECT_TRUE(memory_is_whole());
}

TEST_F(audit, log_on_a_full_disk_has_no_half_lines) {
  const auto write = *open_audit_log(log());
  write(audited_request());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{std::filesystem::file_size(log()) + 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  write(audited_request());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal);
  EXPECT_EQ(lines().size(), 1u);
  write(audited_request());
  const auto all = lines();
  ASSERT_EQ(all.size(), 2u);
  for (const std::string &line : all) EXPECT_TRUE(line.ends_with('}')) << line;
  accept_background_errors();
}

}  // namespace
}  // namespace stillmap::control::testing
