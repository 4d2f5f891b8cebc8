// All tasks of a job by one command: all of them are suspended and resumed, or none.
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <random>
#include <string>

#include "tests/preload/operated_program.h"
#include "tests/support/unique_name.h"

namespace stillmap {
namespace {

using testing::bytes_in;
using testing::client_result;
using testing::client_setting;
using testing::operated_program;
using testing::whole_program;

class each_task : public testing::operated_test {
 protected:
  void SetUp() override {
    operated_test::SetUp();
    if (has_several_devices()) GTEST_SKIP() << "as with one";
  }
  std::unique_ptr<operated_program> start_rank() const {
    return start(1, {machine_, "SLURM_JOB_ID=" + job_});
  }
  client_result command(const std::string &what, const std::string &within = "60") const {
    client_setting setting;
    setting.preloaded = false;
    setting.variables = {machine_};
    return run("../tools/stillmap",
               {"task", what, "job:" + job_, "--all", "--each", "--within", within}, setting);
  }
  const std::string machine_ = "HOSTCUDA=" + profile() + ",machine=" + testing::unique_name("each");
  // A job that no other test has: they see each other's tasks.
  const std::string job_ = std::to_string(::getpid()) + std::to_string(std::random_device{}());
};

TEST_F(each_task, is_suspended_and_resumed) {
  const auto a = start_rank(), b = start_rank(), other = start(1, {machine_});
  ASSERT_TRUE(b->as_operator().suspend(whole_program));
  const client_result away = command("suspend");
  EXPECT_EQ(away.status, 0) << away.err;
  EXPECT_NE(away.out.find(b->address() + ": all tags: suspended already (pinned); nothing to do"),
            std::string::npos)
      << away.out;
  EXPECT_NE(away.out.find(a->address() + ": all tags suspended: "), std::string::npos) << away.out;
  EXPECT_GT(bytes_in(*a).suspended, 0u);
  EXPECT_GT(bytes_in(*b).suspended, 0u);
  EXPECT_EQ(bytes_in(*other).suspended, 0u);
  const client_result back = command("resume");
  EXPECT_EQ(back.status, 0) << back.err;
  EXPECT_EQ(bytes_in(*a).suspended + bytes_in(*b).suspended, 0u);
  EXPECT_EQ(a->end(), 0);
  EXPECT_EQ(b->end(), 0);
}

TEST_F(each_task, stays_as_it_was_where_one_does_not_answer) {
  const auto a = start_rank(), hangs = start_rank();
  ::kill(hangs->pid(), SIGSTOP);
  const client_result away = command("suspend", "2");
  EXPECT_EQ(away.status, 4) << away.err;
  EXPECT_NE(away.err.find(hangs->address() + ": no answer in 2 s"), std::string::npos) << away.err;
  EXPECT_EQ(bytes_in(*a).suspended, 0u);
  ::kill(hangs->pid(), SIGCONT);
  EXPECT_EQ(bytes_in(*hangs).suspended, 0u) << "it was not asked";
  EXPECT_EQ(a->end(), 0);
  EXPECT_EQ(hangs->end(), 0);
}

TEST_F(each_task, says_who_refused_where_another_does_not_answer) {
  const auto hangs = start_rank(), captures = start_rank();
  ASSERT_EQ(captures->ask("capture"), "ok");
  ::kill(hangs->pid(), SIGSTOP);
  const client_result away = command("suspend", "1");
  ::kill(hangs->pid(), SIGCONT);
  EXPECT_EQ(away.status, 4) << away.err;
  EXPECT_NE(away.err.find(captures->address()), std::string::npos) << away.err;
  EXPECT_NE(away.err.find("captures a graph"), std::string::npos) << away.err;
}

TEST_F(each_task, is_resumed_by_none_where_one_cannot) {
  const auto a = start_rank(), b = start_rank();
  ASSERT_EQ(command("suspend").status, 0);
  ::kill(b->pid(), SIGSTOP);
  const client_result back = command("resume", "2");
  EXPECT_EQ(back.status, 4) << back.err;
  EXPECT_GT(bytes_in(*a).suspended, 0u);
  ::kill(b->pid(), SIGCONT);
  EXPECT_EQ(command("resume").status, 0);
  EXPECT_EQ(a->end(), 0);
  EXPECT_EQ(b->end(), 0);
}

TEST_F(each_task, of_none_and_wrong_options_are_refused) {
  const client_result none = command("suspend");
  EXPECT_EQ(none.status, 3) << none.err;
  EXPECT_NE(none.err.find("no task is job:" + job_), std::string::npos) << none.err;
  client_setting setting;
  setting.preloaded = false;
  EXPECT_EQ(run("../tools/stillmap", {"task", "suspend", "job:1", "--each"}, setting).status, 2);
}

}  // namespace
}  // namespace stillmap
