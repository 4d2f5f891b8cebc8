// `stillmap slurm`: the memory of a job, suspended and resumed as Slurm's plugin asks. tools/check/slurm.py has a Slurm.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <future>
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

class slurm_job : public testing::operated_test {
 protected:
  void SetUp() override {
    operated_test::SetUp();
    if (has_several_devices()) GTEST_SKIP() << "as with one";
  }
  void TearDown() override { std::filesystem::remove(lock_file_); }

  std::unique_ptr<operated_program> start_task(const std::string &job) const {
    return start(1, {machine_, "SLURM_JOB_ID=" + job});
  }
  std::unique_ptr<operated_program> start_rank() const {
    auto out = start_task(job_);
    EXPECT_EQ(out->ask("work"), "ok");
    return out;
  }
  client_result command(const std::string &what, const std::string &timeout) const {
    client_setting setting;
    setting.preloaded = false;
    setting.variables = {machine_};
    return run("../tools/stillmap",
               {"slurm", what, job_, "--timeout", timeout, "--lock-file", lock_file_}, setting);
  }

  const std::string machine_ =
      "HOSTCUDA=" + profile() + ",memory=128M,machine=" + testing::unique_name("slurm");
  const std::string lock_file_ =
      (std::filesystem::temp_directory_path() / testing::unique_name("slurm-lock")).string();
  // A job that no other test has: they see each other's tasks.
  const std::string job_ = std::to_string(std::random_device{}() | 1u);
};

TEST_F(slurm_job, is_suspended_and_resumed_with_all_of_its_tasks) {
  const auto a = start_rank(), b = start_rank(), other = start_task(job_ + "0");
  const client_result away = command("suspend", "60");
  ASSERT_EQ(away.status, 0) << away.err;
  EXPECT_NE(away.out.find("2 tasks of job " + job_ + " suspended"), std::string::npos) << away.out;
  EXPECT_EQ(bytes_in(*a).mapped + bytes_in(*b).mapped, 0u);
  EXPECT_GT(bytes_in(*other).mapped, 0u);
  EXPECT_EQ(command("suspend", "60").status, 0) << "there is nothing to do";
  const client_result back = command("resume", "60");
  ASSERT_EQ(back.status, 0) << back.err;
  EXPECT_EQ(bytes_in(*a).suspended + bytes_in(*b).suspended, 0u);
  for (const auto *p : {a.get(), b.get()}) {
    EXPECT_TRUE(p->works());
    EXPECT_EQ(p->ask("constant"), "right");
  }
}

TEST_F(slurm_job, without_tasks_has_nothing_to_do) {
  EXPECT_EQ(command("suspend", "60").status, 0);
  EXPECT_EQ(command("resume", "0").status, 0);
}

TEST_F(slurm_job, stays_whole_where_a_task_does_not_answer) {
  const auto a = start_rank(), b = start_rank();
  ::kill(b->pid(), SIGSTOP);
  const client_result refused = command("suspend", "1");
  EXPECT_EQ(refused.status, 4) << refused.err;
  EXPECT_NE(refused.err.find(b->address() + " does not answer"), std::string::npos) << refused.err;
  EXPECT_EQ(bytes_in(*a).suspended, 0u);
  ::kill(b->pid(), SIGCONT);
  EXPECT_TRUE(a->works());
  EXPECT_TRUE(b->works());
  EXPECT_EQ(bytes_in(*b).suspended, 0u) << "what it finds in its socket is over";
}

TEST_F(slurm_job, stays_whole_where_time_runs_out_in_an_attempt) {
  const auto a = start_rank(), b = start_rank();
  ASSERT_EQ(a->ask("allocate 25"), "ok");
  ASSERT_EQ(b->ask("capture"), "ok");
  for (int i = 0; i < 2; ++i) {
    const client_result refused = command("suspend", "2");
    EXPECT_EQ(refused.status, 4) << refused.err;
    EXPECT_EQ(refused.err.find("is not known"), std::string::npos) << refused.err;
    EXPECT_EQ(bytes_in(*a).suspended, 0u) << refused.err;
  }
}

TEST_F(slurm_job, waits_for_memory_that_another_has) {
  const auto a = start_rank();
  ASSERT_EQ(a->ask("allocate 10"), "ok");
  ASSERT_EQ(command("suspend", "60").status, 0);
  auto other = start_task("");
  ASSERT_EQ(other->ask("allocate 30"), "ok");
  const client_result refused = command("resume", "1");
  EXPECT_EQ(refused.status, 4) << refused.err;
  EXPECT_NE(refused.err.find("the device has "), std::string::npos) << refused.err;
  auto waits = std::async(std::launch::async, [&] { return command("resume", "0"); });
  other.reset();
  const client_result back = waits.get();
  EXPECT_EQ(back.status, 0) << back.err;
  EXPECT_TRUE(a->works());
  EXPECT_EQ(a->ask("constant"), "right");
}

TEST_F(slurm_job, is_suspended_while_its_resume_waits) {
  const auto a = start_rank();
  ASSERT_EQ(a->ask("allocate 10"), "ok");
  ASSERT_EQ(command("suspend", "60").status, 0);
  const auto other = start_task("");
  ASSERT_EQ(other->ask("allocate 30"), "ok");
  auto waits = std::async(std::launch::async, [&] { return command("resume", "0"); });
  // Until it holds the lock, a further resume gets it.
  while (command("resume", "0.01").err.find("another request") == std::string::npos) {
    ASSERT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  }
  EXPECT_EQ(command("suspend", "60").status, 0);
  EXPECT_EQ(waits.get().status, 128 + SIGKILL);
}

TEST_F(slurm_job, has_a_number) {
  for (const char *wrong : {"0", "4294967296", "-1", "7.0", "x"}) {
    client_setting setting;
    setting.preloaded = false;
    const client_result r = run("../tools/stillmap", {"slurm", "suspend", wrong}, setting);
    EXPECT_EQ(r.status, 2) << wrong << ": " << r.err;
  }
}

}  // namespace
}  // namespace stillmap
