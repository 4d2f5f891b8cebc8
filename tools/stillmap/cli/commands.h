// All commands of the program. Each group declares its options in one file.
#pragma once

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/machine.h"

namespace stillmap::tool {

command make_commands();

// The groups.
void add_image_commands(command &root);
void add_task_commands(command &root);
void add_run_command(command &root);
void add_quota_commands(command &root);
void add_top_command(command &root);
void add_metrics_command(command &root);
void add_slurm_commands(command &root);
void add_trace_commands(command &root);
void add_demo_commands(command &root);
void add_map_command(command &root);
void add_doctor_command(command &root);
void add_dryrun_command(command &root);
void add_help_commands(command &root);  // man and completion

// Options that several groups have.
void add_driver_option(command &c, std::string &driver);
void add_driver_options(command &c, driver_options &into);
option &add_tag_option(command &c, std::vector<std::string> &into, const std::string &help);
option &add_timeout_option(command &c, double &seconds, const std::string &help);
void add_profile_option(command &c, std::string &profile);

}  // namespace stillmap::tool
