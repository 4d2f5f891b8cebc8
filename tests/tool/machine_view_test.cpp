// The machine as `stillmap top` sees it, with tasks that say what is not so, and those that are named by their process.
#include "tools/stillmap/machine/machine_view.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "stillmap/checkpoint/base/socket_server.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/control/process_server.h"
#include "tests/support/unique_name.h"
#include "tests/tool/task_test.h"
#include "tools/stillmap/task/address.h"

namespace stillmap::testing {
namespace {

using namespace std::chrono_literals;
using tool::machine_view;
using tool::machine_watch;
using tool::task_view;

class machine_view_test : public task_test {
 protected:
  static machine_view look() {
    machine_watch watch({}, 1s);
    auto view = watch.look();
    EXPECT_TRUE(view) << view.error().line;
    return view ? std::move(*view) : machine_view();
  }
  static const task_view *find(const machine_view &view, const std::string &socket) {
    for (const auto &d : view.devices) {
      for (const task_view &t : d.tasks) {
        if (t.socket == socket) return &t;
      }
    }
    for (const task_view &t : view.without_device) {
      if (t.socket == socket) return &t;
    }
    return nullptr;
  }
};

TEST_F(machine_view_test, has_what_the_application_says) {
  control::server_options options;
  options.task.memory = [] { return control::memory_figures{1, 2, 3, 4, "no-such-quota"}; };
  where_ = "@" + unique_name("stillmap-view") + ".control";
  start_task(std::move(options));
  const machine_view view = look();
  const task_view *const t = find(view, where_);
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->process.pid, ::getpid());
  EXPECT_EQ(t->mapped, 6 * page());
  ASSERT_TRUE(t->memory);
  EXPECT_EQ(t->memory->allocated, 1u);
  EXPECT_EQ(t->memory->cached, 2u);
  EXPECT_EQ(t->memory->evictable, 3u);
  EXPECT_EQ(t->memory->limit, 4u);
  EXPECT_EQ(t->state(), "runs");
}

// A socket that gives each client the same status.
class liar {
 public:
  liar(const std::string &at, const control::process_status &says) : reply_(control::encode(says)) {
    checkpoint::socket_server_options options;
    options.refuse = [](auto &, auto &) {};
    auto made = checkpoint::socket_server::create(
        at, std::move(options),
        [this](checkpoint::socket_channel &with, auto &claimed,
               const std::stop_token &stop) -> checkpoint::socket_server::lease {
          claimed = true;
          (void)with.receive(control::max_request_bytes, 1s, stop);
          (void)with.send(static_cast<std::uint16_t>(control::kind::response), reply_, {}, 1s,
                          stop);
          return nullptr;
        });
    EXPECT_TRUE(made) << made.error().message();
    if (made) server_.emplace(std::move(*made));
  }

 private:
  const control::bytes reply_;
  std::optional<checkpoint::socket_server> server_;
};

TEST_F(machine_view_test, believes_no_task_that_has_more_than_its_device) {
  control::process_status says;
  says.pid = 4711;
  says.device = "\033[2J";
  says.memory_total = std::uint64_t{8} << 30;
  says.memory_free = std::uint64_t{9} << 30;
  says.tags = {{"t", 1, std::uint64_t{9} << 30, std::uint64_t{9} << 30, 0, {}}};
  says.memory = control::memory_figures{.allocated = UINT64_MAX, .quota = "/dev/zero"};
  const std::string at = "@" + unique_name("stillmap-lies") + ".control";
  const liar lies(at, says);
  const machine_view view = look();
  const task_view *const t = find(view, at);
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->state(), "says that it has 9 GiB of the device's 8 GiB");
  EXPECT_EQ(t->held, 0u);
  EXPECT_FALSE(t->memory);
  const ran once = run("top --once");
  EXPECT_EQ(once.status, 0) << once.err;
  EXPECT_EQ(once.out.find('\033'), std::string::npos);
}

TEST_F(machine_view_test, adds_no_sum_that_overflows) {
  control::process_status says;
  says.pid = ::getpid();
  says.tags.assign(3, {"t", 1, 1, UINT64_MAX / 2, UINT64_MAX / 2, {}});
  const std::string at = "@" + unique_name("stillmap-much") + ".control";
  const liar lies(at, says);
  const machine_view view = look();
  const task_view *const t = find(view, at);
  ASSERT_NE(t, nullptr);
  EXPECT_NE(t->trouble, "");
  EXPECT_EQ(t->held, 0u);
}

TEST_F(machine_view_test, finds_a_task_by_its_process) {
  stop_task();
  auto made = control::create_process_server(dev(), "", {});
  ASSERT_TRUE(made) << made.error().message();
  const std::string pid = std::to_string(::getpid());
  const auto by_pid = tool::resolve_task(pid);
  ASSERT_TRUE(by_pid) << by_pid.error().line;
  EXPECT_EQ(*by_pid, made->address());
  expect(run("task status " + pid), 0, {"process " + pid});
  const std::string name = tool::identify(::getpid()).name;
  expect(run("task list --filter " + pid + " --filter name:" + name), 0, {*by_pid});
  expect(run("task list --filter name:no-such-program"), 0, {"no task matches"});
  expect_failure("task status 1", 3, "no task is 1");
  expect_failure("task status job:77", 3, "no task is job:77");
  expect_usage("task list --filter what:7", "is no filter");
  EXPECT_EQ(tool::resolve_task("no.control").value_or(""), "no.control");
  EXPECT_EQ(tool::resolve_task("@4711").value_or(""), "@4711");
  // A second one of this process.
  auto second = control::create_process_server(dev(), "", {});
  ASSERT_TRUE(second) << second.error().message();
  expect_usage("task status " + pid, "2 tasks are " + pid);
}

}  // namespace
}  // namespace stillmap::testing
