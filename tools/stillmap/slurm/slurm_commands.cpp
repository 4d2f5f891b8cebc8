#include "tools/stillmap/slurm/slurm_commands.h"

#include "tools/stillmap/cli/commands.h"

namespace stillmap::tool {
namespace {

void add_job(command &c, slurm_job_options &into, const std::string &timeout_help) {
  c.argument(into.job, "JOB", "the job's id in Slurm; all of its steps are meant").required();
  add_timeout_option(c, into.timeout, timeout_help);
  c.text("--lock-file", into.lock_file, "FILE",
         "the file by which requests for one job exclude each other (default: " + into.lock_file +
             ")");
}

}  // namespace

void add_slurm_commands(command &root) {
  command &group = root.add("slurm",
                            "Device memory of Slurm's jobs, suspended and resumed with them. "
                            "Slurm's plugin task/stillmap calls these commands.");
  const auto [suspend, suspended] = group.add(
      "suspend", run_slurm_suspend,
      "Suspends the memory of all tasks of a job on this machine, or of none. A task that is busy "
      "is asked again until the timeout. A resume of the job that has not ended is ended first.");
  add_job(suspend, suspended, "how long it may take (default: 60)");
  const auto [resume, resumed] = group.add(
      "resume", run_slurm_resume,
      "Resumes the memory of all tasks of a job on this machine. Where the device has too little "
      "memory, or a task does not answer, it tries again until all are resumed, no task of the "
      "job is left, or the timeout has passed.");
  add_job(resume, resumed, "how long to try (default: 60; 0: as long as the job has tasks)");
}

}  // namespace stillmap::tool
