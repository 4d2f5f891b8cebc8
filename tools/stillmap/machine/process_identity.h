// Whose a process is, as the kernel and the cgroups of Slurm, containers and Kubernetes say.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace stillmap::tool {

struct process_identity {
  pid_t pid = 0;
  std::uint64_t start_time =
      0;  // in clock ticks since the boot: with the pid, unique. 0: it has ended
  uid_t uid = 0;
  std::string user;       // its name, or the number
  std::string name;       // of the program, at most 15 characters
  std::string job;        // of Slurm: "4711.0", or "4711" outside of a step; empty: none
  std::string container;  // the first 12 digits of its id; empty: none
  std::string pod;        // the UID of a Kubernetes pod; empty: none

  // "job 4711.0", "pod 1f3b…", "container 3fa9…", or nothing: the narrowest that an operator works with.
  std::string place() const;
};

// What of it a text of /proc/PID/cgroup says: job, container, pod.
void read_cgroup(const std::string &text, process_identity &into);

// Of a process of this PID namespace. Without a cgroup of Slurm's, the job is that of the process's environment, where
// this user may read it.
// Cost: five small files of /proc.
process_identity identify(pid_t pid);
// Only the time, to see whether a pid is still that process; 0: it has ended.
std::uint64_t start_time_of(pid_t pid);

}  // namespace stillmap::tool
