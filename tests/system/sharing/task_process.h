// A task in a process of its own: this program again, on the simulated machine that all of a test share.
#pragma once

#include <sys/types.h>

#include <string>

namespace stillmap::testing {

// The role of this process, and the name of the machine and quota; empty in the test itself.
std::string task_role();
std::string shared_name();

// Started with the filter of the running test, so that it runs the same test in its role.
class task_process {
 public:
  // `machine`: settings of hostcuda beside the machine's name.
  task_process(const std::string &role, const std::string &name, const std::string &machine);
  task_process(task_process &&) = delete;
  ~task_process();  // kills it
  // Waits for its end. Returns its report, or how it ended without one.
  std::string report();

 private:
  int output_ = -1;
  pid_t pid_ = -1;
};

// In the other process: prints the report and ends the process.
[[noreturn]] void report_and_end(const std::string &line);

}  // namespace stillmap::testing
