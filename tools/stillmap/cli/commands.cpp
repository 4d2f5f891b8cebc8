#include "tools/stillmap/cli/commands.h"

namespace stillmap::tool {

command make_commands() {
  command root("Device memory that grows and moves while its address stays.");
  root.notes =
      "Each command explains itself: stillmap COMMAND --help. There is a manual page for each:\n"
      "man stillmap-image-verify, or stillmap man image verify | man -l -\n";
  add_run_command(root);
  add_image_commands(root);
  add_task_commands(root);
  add_quota_commands(root);
  add_top_command(root);
  add_metrics_command(root);
  add_slurm_commands(root);
  add_trace_commands(root);
  add_doctor_command(root);
  add_demo_commands(root);
  add_map_command(root);
  add_dryrun_command(root);
  add_help_commands(root);
  return root;
}

void add_driver_option(command &c, std::string &driver) {
  c.text("--driver", driver, "cuda|host|PATH",
         "cuda: the machine's GPU; host: hostcuda, a CUDA driver on host memory; or the path of a "
         "driver library. Default: $STILLMAP_DRIVER, else a GPU where there is one, else hostcuda");
}

void add_driver_options(command &c, driver_options &into) {
  add_driver_option(c, into.driver);
  c.number("--device", into.device, 0, 1 << 20, "N", "the ordinal of the device, from 0");
}

option &add_tag_option(command &c, std::vector<std::string> &into, const std::string &help) {
  return c.texts("--tag", into, "TAG", help);
}

option &add_timeout_option(command &c, double &seconds, const std::string &help) {
  return c.number("--timeout", seconds, 0.0, 86400.0, "SECONDS", help);
}

void add_profile_option(command &c, std::string &profile) {
  c.text("--profile", profile, "NAME", "the machine that hostcuda simulates: h200, a100, ...");
}

}  // namespace stillmap::tool
