// The lock of an ownership record: a file beside it that a process keeps locked (flock).
#pragma once

#include <string>
#include <utility>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap::migration {

// Threads: externally synchronised.
// Fork:    the child does not have it.
class record_lock {
 public:
  // Creates the file if it does not exist.
  // Errors: busy (another process has it), the system's; the subject is the path.
  static result<record_lock> take(std::string path);
  record_lock(record_lock &&) noexcept = default;
  record_lock &operator=(record_lock &&) noexcept = default;

  const std::string &path() const { return path_; }
  // False in a forked child.
  bool is_held() const noexcept { return file_.get() >= 0; }
  // Whether the path leads to the locked file. If not, it was deleted or replaced, and another process
  // can take the lock.
  bool is_at_path() const noexcept;
  // Whether a process has the lock.
  static bool is_taken(const std::string &path) noexcept;

 private:
  record_lock(std::string path, fork_closed_fd file) noexcept
      : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  fork_closed_fd file_;
};

}  // namespace stillmap::migration
