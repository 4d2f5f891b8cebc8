// This program again, as another process: forking is not for users of CUDA.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace stillmap::bench {

class other_process {
 public:
  // With these NAME=VALUE before what this process has in its environment.
  explicit other_process(std::vector<std::string> settings);
  other_process(const other_process &) = delete;
  ~other_process() { ended_well(); }

  pid_t pid() const { return pid_; }
  // Waits until it has ended. Whether it exited with 0; the first one to ask hears it.
  bool ended_well();

 private:
  pid_t pid_ = -1;
};

}  // namespace stillmap::bench
