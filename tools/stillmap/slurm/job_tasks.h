// The tasks of one of Slurm's jobs on this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/requests.h"
#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/task/each_task.h"

namespace stillmap::tool {

using time_limit = std::chrono::steady_clock::time_point;
time_limit time_limit_in(double seconds);

struct job_task {
  std::string socket;
  bool answers = false;                     // the rest is known
  bool in_request = false;                  // it carries out a request
  std::uint64_t mapped = 0, suspended = 0;  // bytes of tags
  std::string device;                       // its UUID
  std::uint64_t free = 0;                   // bytes of the device; 0: unknown

  bool is_suspended() const { return answers && !in_request && mapped == 0; }
  bool is_resumed() const { return answers && !in_request && suspended == 0; }
};

// The number of a job: Slurm's are from 1 to 2^32 - 1.
// Errors: exit_usage.
outcome<std::uint32_t> job_number(const std::string &text);

// Which tasks are of this job, the kernel says: a process that is stopped has its identity, too, and only does not
// answer. Tasks of other users than the job's (job_owners) are none of its.
// Errors: those of control::find_tasks.
// Cost:   a twentieth of a second where any task of the machine does not answer, and a second where one of the job does
//         not.
outcome<std::vector<job_task>> find_job_tasks(std::uint32_t job);

// Bytes of all answers.
std::uint64_t bytes_of(const std::vector<answered_task> &all);

// "2 tasks of job 12"
std::string tasks_text(std::uint32_t job, std::size_t tasks);

}  // namespace stillmap::tool
