// Starts this program again as another process, since CUDA does not work in a forked child.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace stillmap::bench {

class other_process {
 public:
  // `settings` (NAME=VALUE) come before the environment of this process.
  explicit other_process(std::vector<std::string> settings);
  other_process(const other_process &) = delete;
  ~other_process() { ended_well(); }

  pid_t pid() const { return pid_; }
  // Waits until it has ended. Returns whether it exited with 0; only the first call does.
  bool ended_well();

 private:
  pid_t pid_ = -1;
};

}  // namespace stillmap::bench
