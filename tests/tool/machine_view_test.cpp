// The machine as `stillmap top` sees it, with tasks that say what is not so, and those that are named by their process.
#include "tools/stillmap/machine/machine_view.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "stillmap/allocators/shared_quota.h"
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

// Regression: root opened no file of another user's, and saw none of their waits.
TEST_F(machine_view_test, shows_root_the_waits_of_other_users) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
  const std::string theirs = unique_name("stillmap-theirs"), roots = unique_name("stillmap-roots");
  const auto own = shared_quota::open(roots, {.limit = 100 * MiB});
  ASSERT_TRUE(own) << own.error().message();
  const auto address = [](const std::string &quota) { return "@stillmap-" + quota + ".control"; };
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::setgid(1) != 0 || ::setuid(1) != 0) ::_exit(77);
    ::prctl(PR_SET_DUMPABLE,
            1);  // so that its folder in /proc is its user's, as that of a program that was started
    control::process_status says;
    says.pid = ::getpid();
    says.memory = control::memory_figures{.quota = theirs};
    const liar waits(address(theirs), says);
    says.memory = control::memory_figures{.quota = roots};
    const liar claims(address(roots), says);
    const auto holds = shared_quota::open(theirs, {.limit = 100 * MiB});
    const auto wants = shared_quota::open(theirs, {.limit = 100 * MiB, .timeout = 50s});
    if (!holds || !wants || !(*holds)->reserve(90 * MiB)) ::_exit(1);
    (void)!::write(ready[1], "x", 1);
    (void)(*wants)->make_room(50 * MiB);
    ::_exit(0);
  }
  ::close(ready[1]);
  char byte = 0;
  const bool started = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  std::optional<task_view> seen, claimed;
  for (int i = 0; started && i < 300 && !(seen && seen->wait && seen->wait->bytes != 0); ++i) {
    const machine_view view = look();
    if (const task_view *const t = find(view, address(theirs))) seen = *t;
    if (const task_view *const t = find(view, address(roots))) claimed = *t;
    std::this_thread::sleep_for(20ms);
  }
  ::kill(child, SIGKILL);
  int how = 0;
  ::waitpid(child, &how, 0);
  (void)shared_quota::remove(theirs);
  (void)shared_quota::remove(roots);
  if (WIFEXITED(how) && WEXITSTATUS(how) == 77)
    GTEST_SKIP() << "needs users that a user namespace maps";
  ASSERT_TRUE(started);
  ASSERT_TRUE(seen && seen->wait);
  EXPECT_EQ(seen->process.uid, 1u);
  EXPECT_EQ(seen->wait->bytes, 50 * MiB);
  EXPECT_EQ(seen->state(), "waits for 50 MiB");  // nobody offers anything, so nobody is asked
  // What the file of one user says of another's task is not believed.
  ASSERT_TRUE(claimed);
  EXPECT_FALSE(claimed->wait);
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
