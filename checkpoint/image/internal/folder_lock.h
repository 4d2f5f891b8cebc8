// The lock of a folder whose set is being written or removed: a file in it. The folder itself could be
// kept locked by whoever can read it.
#pragma once

#include <memory>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/vmm/base/creating_process.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

class folder_lock {
 public:
  // `directory`: stays open as long as the lock.
  // Errors: busy (another writer has it), errors of system calls.
  static result<std::unique_ptr<folder_lock>> take(checkpoint::file_system &files, int directory);
  folder_lock(const folder_lock &) = delete;
  // Removes the file; not in a forked child.
  ~folder_lock();

  // Network file systems may not lock files: then other writers may be alive.
  bool excludes_others() const { return locked_; }

 private:
  folder_lock(checkpoint::file_system &files, int directory)
      : files_(files), directory_(directory) {}

  checkpoint::file_system &files_;
  const int directory_;
  int fd_ = -1;
  bool locked_ = false, remove_ = false;
  const creating_process process_;
};

}  // namespace stillmap::image
