// Requests for one job exclude each other, whichever process makes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "stillmap/vmm/base/owned_fd.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// A record lock on the byte of the file whose offset is the job's id: the kernel names its holder, and releases it
// when that ends in any way. Nothing is written.
class job_lock {
 public:
  enum class holder_rule { wait, end };  // for the process that holds it, or end that one

  // Errors: exit_failed, exit_refused (the file), exit_busy (still held at `until`).
  static outcome<job_lock> take(const std::string &file, std::uint32_t job, holder_rule rule,
                                std::chrono::steady_clock::time_point until);

 private:
  explicit job_lock(owned_fd file) : file_(std::move(file)) {}
  owned_fd file_;
};

}  // namespace stillmap::tool
