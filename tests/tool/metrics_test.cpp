// `stillmap metrics`: what it writes, whatever tasks are called, and how it is scraped.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "stillmap/vmm/base/owned_fd.h"
#include "tests/support/unique_name.h"
#include "tests/tool/task_test.h"
#include "tools/stillmap/metrics/open_metrics.h"

namespace stillmap::testing {
namespace {

using tool::label_value;
using tool::machine_view;
using tool::open_metrics_of;
using tool::task_view;

TEST(open_metrics, escapes_what_others_chose) {
  EXPECT_EQ(label_value("a\"b\\c"), "a\\\"b\\\\c");
  EXPECT_EQ(label_value("a\nb").find('\n'), std::string::npos);
  EXPECT_EQ(label_value("a\xff\x01z"), "a\\\\xff\\\\x01z");
  EXPECT_EQ(label_value("\xc3\xa4"), "\xc3\xa4");
  EXPECT_NE(label_value("a\x01"), label_value("a\x02")) << "or two tags are one series";
}

machine_view a_machine() {
  machine_view view;
  tool::device_view &d = view.devices.emplace_back();
  d.uuid = "GPU-1";
  d.name = "H200";
  d.total = 100;
  d.used = 60;
  d.others = 10;
  d.other_processes = 2;
  task_view &t = d.tasks.emplace_back();
  t.socket = "@stillmap-4711.control";
  t.process.pid = 4711;
  t.process.user = "ann";
  t.process.name = "py\"thon";
  t.process.job = "12.0";
  t.held = 50;
  t.held_is_known = true;
  t.mapped = 45;
  t.memory = control::memory_figures{40, 5, 3, 0, ""};
  t.job.request = control::request_kind::snapshot;
  t.tags = {{"weights", 1, 45, 45, 0, {}}};
  task_view &silent = d.tasks.emplace_back();
  silent.socket = "@stillmap-4712.control";
  silent.trouble = "no answer";
  return view;
}

TEST(open_metrics, has_each_figure_of_devices_tasks_and_tags) {
  const std::string text = open_metrics_of(a_machine(), 0.25);
  const std::string task =
      "{device=\"GPU-1\",task=\"@stillmap-4711.control\",pid=\"4711\",user=\"ann\",program="
      "\"py\\\"thon\","
      "slurm_job=\"12.0\",container=\"\",pod=\"\"} ";
  for (const std::string &line :
       {std::string("stillmap_look_seconds 0.25"),
        std::string("# TYPE stillmap_device_used_bytes gauge"),
        std::string("# UNIT stillmap_device_used_bytes bytes"),
        std::string("stillmap_device_used_bytes{device=\"GPU-1\",name=\"H200\"} 60"),
        std::string("stillmap_device_others_bytes{device=\"GPU-1\",name=\"H200\"} 10"),
        "stillmap_task_held_bytes" + task + "50", "stillmap_task_live_bytes" + task + "40",
        "stillmap_task_cached_bytes" + task + "5", "stillmap_task_evictable_bytes" + task + "3",
        "stillmap_task_up" + task + "1",
        std::string("slurm_job=\"12.0\",container=\"\",pod=\"\",request=\"snapshot\"} 1"),
        std::string("stillmap_tag_mapped_bytes{device=\"GPU-1\",task=\"@stillmap-4711.control\","
                    "tag=\"weights\"} 45")}) {
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line << " is not in:\n" << text;
  }
  EXPECT_EQ(text.find("stillmap_task_limit_bytes{"), std::string::npos) << "it has no limit";
  const std::string silent = "task=\"@stillmap-4712.control\"";
  for (const char *const family : {"held", "mapped", "suspended", "waits_for"}) {
    EXPECT_EQ(
        text.find(std::string("stillmap_task_") + family + "_bytes{device=\"GPU-1\"," + silent),
        std::string::npos)
        << "it does not say";
  }
  EXPECT_NE(text.find("stillmap_task_up{device=\"GPU-1\"," + silent), std::string::npos);
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
  const std::string old = tool::text_file_of(a_machine(), 0.25);
  EXPECT_EQ(old.find("# UNIT"), std::string::npos);
  EXPECT_EQ(old.find("# EOF"), std::string::npos);
  EXPECT_NE(old.find("stillmap_task_held_bytes" + task + "50\n"), std::string::npos);
}

class metrics_command : public task_test {
 protected:
  void SetUp() override {
    task_test::SetUp();
    if (IsSkipped()) return;
    where_ = "@" + unique_name("stillmap-metrics") + ".control";
    start_task();
  }
  // The whole answer.
  static std::string ask(const owned_fd &server, const std::string &request) {
    std::string out;
    if (::send(server.get(), request.data(), request.size(), 0) < 0) return out;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::recv(server.get(), buffer, sizeof buffer, 0)) > 0;)
      out.append(buffer, static_cast<std::size_t>(n));
    return out;
  }
  static std::string get(const owned_fd &server, const std::string &path,
                         const char *method = "GET") {
    return ask(server,
               std::string(method) + " " + path +
                   " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
  }
  static owned_fd connect_to_port(int port) {
    owned_fd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(out.get(), reinterpret_cast<sockaddr *>(&at), sizeof at), 0);
    return out;
  }
  static owned_fd connect_to_path(const std::string &path) {
    owned_fd out(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, path.c_str(), path.size() + 1);
    EXPECT_EQ(::connect(out.get(), reinterpret_cast<sockaddr *>(&at), sizeof at), 0);
    return out;
  }
  void end(const std::string &name) {
    ::kill(processes_.at(name), SIGTERM);
    EXPECT_EQ(ended(name), 0);
  }
};

TEST_F(metrics_command, is_scraped) {
  start_process("metrics", "metrics --listen 127.0.0.1:0");
  const std::string says = once("metrics.out", "/metrics\n");
  const std::size_t at = says.find("http://127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << says;
  const int port = std::stoi(says.substr(at + 17));
  const std::string scraped = get(connect_to_port(port), "/metrics");
  EXPECT_NE(scraped.find("HTTP/1.1 200"), std::string::npos) << scraped;
  EXPECT_NE(scraped.find("application/openmetrics-text; version=1.0.0; charset=utf-8"),
            std::string::npos)
      << scraped;
  EXPECT_NE(scraped.find("task=\"" + where_ + "\",tag=\"weights\"} " + std::to_string(4 * page())),
            std::string::npos)
      << scraped;
  EXPECT_NE(get(connect_to_port(port), "/").find("404"), std::string::npos);
  EXPECT_NE(get(connect_to_port(port), "/metrics", "POST").find("405"), std::string::npos);
  EXPECT_EQ(ask(connect_to_port(port), "\1\2\3\r\n\r\n").find("200"), std::string::npos);
  // One that says nothing keeps no other from being answered.
  const owned_fd silent = connect_to_port(port);
  EXPECT_NE(get(connect_to_port(port), "/metrics").find("# EOF"), std::string::npos);
  expect_failure("metrics --listen 127.0.0.1:" + std::to_string(port), 4, "cannot listen at");
  end("metrics");
}

TEST_F(metrics_command, listens_on_a_socket) {
  expect_usage("metrics --socket /tmp/" + std::string(108, 'x'), "107 are possible");
  const std::string path = "/tmp/" + unique_name("stillmap-metrics");  // short enough
  start_process("metrics", "metrics --socket '" + path + "'");
  once("metrics.out", "metrics at " + path);
  struct stat mode {};
  ASSERT_EQ(::stat(path.c_str(), &mode), 0);
  EXPECT_EQ(mode.st_mode & 0777, 0600u);
  EXPECT_NE(get(connect_to_path(path), "/metrics").find("# EOF"), std::string::npos);
  expect_failure("metrics --socket '" + path + "'", 4, "a process listens there");
  // What a dead process leaves behind is replaced.
  ::kill(processes_.at("metrics"), SIGKILL);
  ended("metrics");
  start_process("second", "metrics --socket '" + path + "'");
  once("second.out", "metrics at " + path);
  EXPECT_NE(get(connect_to_path(path), "/metrics").find("# EOF"), std::string::npos);
  end("second");
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "it is removed";
}

TEST_F(metrics_command, writes_a_file) {
  const std::string path = file("stillmap.prom");
  EXPECT_EQ(run("metrics --once --textfile '" + path + "'").status, 0);
  const std::string text = content(path);
  EXPECT_NE(text.find("task=\"" + where_ + "\",tag=\"cache\"} " + std::to_string(2 * page())),
            std::string::npos)
      << text;
  struct stat mode {};
  ASSERT_EQ(::stat(path.c_str(), &mode), 0);
  EXPECT_EQ(mode.st_mode & 0777, 0644u);
  expect_failure("metrics --once --textfile /no/such/folder/x.prom", 3, "/no/such/folder");
  expect_usage("metrics --listen nowhere", "not an address and a port");
  expect_usage("metrics --listen 127.0.0.1:99999", "--listen");
  EXPECT_TRUE(run("metrics --once").out.ends_with("# EOF\n"));
}

}  // namespace
}  // namespace stillmap::testing
