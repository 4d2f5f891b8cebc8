// Whose a process is, by the cgroups that Slurm, containers and Kubernetes make.
#include "tools/stillmap/machine/process_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace stillmap::tool {
namespace {

const std::string id(64, 'a');

process_identity of(const std::string &cgroup) {
  process_identity out;
  read_cgroup(cgroup, out);
  return out;
}

TEST(process_identity, knows_jobs_of_slurm) {
  EXPECT_EQ(of("12:devices:/slurm/uid_1000/job_4711/step_0/task_0\n1:name=systemd:/x\n").job,
            "4711.0");
  EXPECT_EQ(of("0::/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0\n").job,
            "12.batch");
  EXPECT_EQ(of("0::/system.slice/slurmstepd.scope/job_12\n").job, "12");
  EXPECT_EQ(of("0::/job_x/step_0\n").job, "");
  EXPECT_EQ(of("0::/step_0/job_7\n").job, "7") << "a step is of the job before it";
}

TEST(process_identity, knows_containers) {
  const std::string shown(12, 'a');
  EXPECT_EQ(of("0::/system.slice/docker-" + id + ".scope\n").container, shown);
  EXPECT_EQ(of("5:memory:/docker/" + id + "\n").container, shown);
  EXPECT_EQ(of("0::/user.slice/libpod-" + id + ".scope/container\n").container, shown);
  EXPECT_EQ(of("0::/system.slice/" + std::string(64, 'g') + "\n").container, "");
  EXPECT_EQ(of("0::/system.slice/b" + id + "\n").container, "") << "65 digits";
}

TEST(process_identity, knows_pods) {
  const std::string uid = "1f3b2c4d-0001-4002-8003-123456789abc";
  const process_identity v1 = of("3:cpu:/kubepods/burstable/pod" + uid + "/" + id + "\n");
  EXPECT_EQ(v1.pod, uid);
  EXPECT_EQ(v1.container, std::string(12, 'a'));
  std::string underscores = uid;
  for (char &c : underscores) c = c == '-' ? '_' : c;
  const process_identity v2 =
      of("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscores +
         ".slice/cri-containerd-" + id + ".scope\n");
  EXPECT_EQ(v2.pod, uid);
  EXPECT_EQ(v2.place(), "pod 1f3b2c4d");
  EXPECT_EQ(of("0::/podman/podcast\n").pod, "");
}

TEST(process_identity, takes_nothing_from_what_is_malformed) {
  for (const char *const text :
       {"", "\n", ":", "::", "0:", "x", "0::/job_/step_/pod/docker-.scope"}) {
    const process_identity p = of(text);
    EXPECT_EQ(p.job + p.container + p.pod + p.place(), "") << text;
  }
}

TEST(process_identity, of_this_process) {
  const process_identity p = identify(::getpid());
  EXPECT_EQ(p.pid, ::getpid());
  EXPECT_EQ(p.uid, ::geteuid());
  EXPECT_NE(p.user, "");
  EXPECT_NE(p.name, "");
  EXPECT_NE(p.start_time, 0u);
  EXPECT_EQ(p.start_time, start_time_of(::getpid()));
}

TEST(process_identity, of_a_process_whose_job_is_in_its_environment) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("SLURM_JOB_ID", "31", 1);
    ::setenv("SLURM_STEP_ID", "2", 1);
    // /proc/PID/environ is that at the start of the program.
    ::execl("/bin/sleep", "sleep) 1 2 (", "60", static_cast<char *>(nullptr));
    ::_exit(127);
  }
  process_identity p;
  for (int i = 0; i < 1000 && p.job.empty(); ++i) {
    ::usleep(5000);
    p = identify(child);
  }
  EXPECT_EQ(p.job, "31.2");
  EXPECT_EQ(p.place(), "job 31.2");
  EXPECT_NE(p.start_time, 0u);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(identify(child).start_time, 0u) << "it has ended";
}

}  // namespace
}  // namespace stillmap::tool
