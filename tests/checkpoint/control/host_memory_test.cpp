// Each host allocation of a client, and of the thread that serves a request, fails in turn: the
// request is then carried out or not, the application continues where it was stopped, and the server
// goes on.
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/checkpoint/control/task.h"
#include "tests/support/held.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/unique_name.h"

namespace stillmap::control::testing {
namespace {

using checkpoint::backing_store;
using checkpoint::suspender;
using stillmap::testing::allocation_sweep;
using stillmap::testing::fail_each_allocation;
using stillmap::testing::failing_allocation;
using stillmap::testing::failing_thread;
using stillmap::testing::held;
using stillmap::testing::one_in;

// What could be written of an audit log; removes it.
void expect_whole_lines(const std::string &log) {
  std::ifstream file(log);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    EXPECT_TRUE(line.starts_with("{\"time\": \"") && line.ends_with('}')) << line;
  }
  EXPECT_GT(lines, 0);
  std::filesystem::remove(log);
}

// What begins to fail on the next thread but the client's that receives: one that serves a connection,
// which has allocated nothing by then.
std::atomic<failing_thread *> serving_thread{nullptr};
pthread_t client_thread;

class control_without_host_memory : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
    STILLMAP_ONE_PROFILE_DOES();
    client_thread = ::pthread_self();
    serving_thread = &thread_;
    make_memory();
    auto made = suspender::create(dev());
    ASSERT_DONE(made);
    suspender_ = std::move(*made);
  }
  void TearDown() override {
    serving_thread = nullptr;
    stop();
    suspender_.reset();
    control_test::TearDown();
  }

  // A server whose suspender outlives it, and whose application counts how often it was stopped.
  // Nothing here allocates.
  server_options counting() {
    server_options o;
    o.suspender = suspender_;
    o.task.quiesce = [this](auto, auto) {
      ++stops_;
      return status{};
    };
    o.task.resume = [this](auto) { ++goes_; };
    return o;
  }
  bool suspended() const { return !suspender_->suspended().empty(); }
  // Of the other requests, a suspend excepted.
  int still_stopped() const { return stops_ - goes_; }

  // Runs request() with each allocation of the thread that serves it failing. The client receives the
  // error, or finds the connection closed.
  template <class Request, class Check>
  void sweep_server(const Request &request, const Check &check,
                    const std::function<void()> &prepare = {}) {
    for (const bool all_after : {false, true}) {
      for (std::uint64_t n = 0;; n += one_in(3)) {
        SCOPED_TRACE((all_after ? "all from allocation " : "allocation ") + std::to_string(n));
        if (prepare) prepare();
        thread_.arm(n, all_after);
        const auto done = request();
        const bool failed = thread_.happened();
        if (!done) {
          const error &e = done.error();
          EXPECT_TRUE(e.is(errc::out_of_memory) || e.code == std::errc::connection_reset ||
                      e.code == std::errc::broken_pipe)
              << e.message();
          EXPECT_TRUE(failed);
        }
        check(done.has_value(), done || !done.error().is(errc::out_of_memory));
        EXPECT_EQ(still_stopped(), suspended() ? 1 : 0);
        expect_idle();
        if (!failed) break;
        ++all_.points;
        ++(done ? all_.survived : all_.refused);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
  void expect_idle() const {
    const auto s = ask().status();
    EXPECT_TRUE(s) << s.error().message();
    EXPECT_TRUE(!s || s->job.request == request_kind::none);
  }

  std::shared_ptr<suspender> suspender_;
  failing_thread thread_;
  std::atomic<int> stops_{0}, goes_{0};
  allocation_sweep all_;
};

TEST_F(control_without_host_memory, a_server_goes_on) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "recvmsg() is ThreadSanitizer's";
#endif
  const std::string log = stillmap::testing::unique_name("/tmp/stillmap-audit");
  server_options options = counting();
  options.audit = *open_audit_log(log);
  start(std::move(options));
  ASSERT_DONE(ask().status());
  const held before = held::now(driver());
  sweep_server([&] { return ask().status(); }, [](bool, bool) {});
  ASSERT_FALSE(HasFailure());
  // Where the connection is closed, the request may have been carried out.
  const suspend_request away{"weights", backing_store::pinned_host, ""};
  sweep_server([&] { return ask().suspend(away); },
               [&](bool done, bool perhaps) {
                 EXPECT_TRUE(suspended() ? perhaps : !done);
                 if (suspended()) ASSERT_DONE(ask().resume("weights"));
                 EXPECT_TRUE(memory_is_whole());
               });
  ASSERT_FALSE(HasFailure());
  sweep_server([&] { return ask().resume("weights"); },
               [&](bool done, bool perhaps) {
                 EXPECT_TRUE(suspended() ? !done : perhaps);
                 if (suspended()) return;
                 EXPECT_TRUE(memory_is_whole());
               },
               [&] {
                 if (!suspended()) ASSERT_DONE(ask().suspend(away));
               });
  ASSERT_FALSE(HasFailure());
  if (suspended()) ASSERT_DONE(ask().resume("weights"));
  const snapshot_request save{{"weights"}, file("a.smi")};
  sweep_server([&] { return ask().snapshot(save); },
               [&](bool done, bool perhaps) {
                 EXPECT_TRUE(files() == 0 ? !done : perhaps) << files();
                 EXPECT_LE(files(), 1u);
                 std::filesystem::remove(save.path);
               });
  ASSERT_FALSE(HasFailure());
  ASSERT_DONE(ask().snapshot(save));
  sweep_server(
      [&] {
        return ask().restore({{"weights"}, save.path});
      },
      [&](bool, bool) { EXPECT_TRUE(memory_is_whole()); });
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(before.more_now(driver()), "");
  EXPECT_TRUE(memory_is_whole());
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(100));
  all_.note("control::server", one_in(2) == 1 ? "" : " (one in 3)");
  expect_whole_lines(log);
  accept_background_errors();  // of records that could not be written
}

TEST_F(control_without_host_memory, a_client_gets_an_error) {
  const client c = ask();
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          start(counting());
          (void)failing([&] { return c.status(); });
          ASSERT_DONE(c.status());
          stop();
        },
        all_after);
    const suspend_request away{"weights", backing_store::pinned_host, ""};
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          start(counting());
          const auto done = failing([&] { return c.suspend(away); });
          stop();  // waits for the request
          EXPECT_TRUE(!done || suspended());
          if (suspended()) ASSERT_DONE(suspender_->resume("weights"));
          EXPECT_TRUE(memory_is_whole());
          stops_ = goes_ = 0;
        },
        all_after);
    const snapshot_request save{{"weights"}, file("a.smi")};
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          start(counting());
          const auto done = failing([&] { return c.snapshot(save); });
          stop();
          EXPECT_TRUE(!done || files() == 1);
          EXPECT_LE(files(), 1u);
          std::filesystem::remove(save.path);
          EXPECT_EQ(still_stopped(), 0);
        },
        all_after);
    start(counting());
    ASSERT_DONE(c.snapshot(save));
    stop();
    const restore_request back{{"weights"}, save.path};
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          start(counting());
          (void)failing([&] { return c.restore(back); });
          stop();
          EXPECT_TRUE(memory_is_whole());
          EXPECT_EQ(still_stopped(), 0);
        },
        all_after);
    std::filesystem::remove(save.path);
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(30));
  all_.note("control::client");
}

TEST_F(control_without_host_memory, a_server_starts_or_leaves_nothing) {
  // Short enough for a socket, unlike paths in TempDir().
  const std::string path = stillmap::testing::unique_name("/tmp/stillmap-control");
  for (const bool all_after : {false, true}) {
    all_ += fail_each_allocation(
        [&](failing_allocation &failing) {
          const held before = held::now(driver());
          {
            const auto made = failing([&] { return server::create(dev(), path); });
            EXPECT_EQ(::access(path.c_str(), F_OK) == 0, made.has_value());
            EXPECT_TRUE(!made || client(path).status());
          }
          EXPECT_NE(::access(path.c_str(), F_OK), 0);
          EXPECT_EQ(before.more_now(driver()), "");
        },
        all_after);
  }
  EXPECT_GT(all_.points, stillmap::testing::fewest_points(4));
  all_.note("control::server::create");
}

}  // namespace

void receive_begins() {
  failing_thread *const t = serving_thread;
  if (t != nullptr && ::pthread_equal(::pthread_self(), client_thread) == 0) t->begin();
}

}  // namespace stillmap::control::testing

#ifndef __SANITIZE_THREAD__
// In place of the C library's.
extern "C" ssize_t recvmsg(int fd, msghdr *message, int flags) {
  stillmap::control::testing::receive_begins();
  return ::syscall(SYS_recvmsg, fd, message, flags);
}
#endif
