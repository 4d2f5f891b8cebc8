// The commands of `stillmap slurm`: their options, and what runs them. docs/slurm.md
#pragma once

#include <string>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct slurm_job_options {
  std::string job;      // "4711": all of its steps
  double timeout = 60;  // seconds
  std::string lock_file = "/run/stillmap-slurm.lock";
};
outcome<exit_status> run_slurm_suspend(const slurm_job_options &o);
outcome<exit_status> run_slurm_resume(const slurm_job_options &o);

}  // namespace stillmap::tool
