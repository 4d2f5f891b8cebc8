// An unnamed temporary file (O_TMPFILE): it ceases to exist when it is closed or the process ends.
#pragma once

#include <cstddef>
#include <string>

#include "stillmap/vmm/physical_memory.h"

namespace stillmap::checkpoint {

// Uses direct I/O where the file system can: the contents would evict everything else from the page
// cache. Uses threads instead of io_uring, which container runtimes commonly forbid.
// Threads: safe, for ranges that do not overlap.
class scratch_file {
 public:
  // Creates a file in the directory and allocates `bytes` of disk space.
  // Errors: the system's (no such directory, not permitted, no space: value = bytes).
  static result<scratch_file> create(const std::string &directory, std::size_t bytes);

  // Requires: addresses, sizes and offsets are multiples of 4096.
  // Errors:   the system's (value = offset), corrupt (the file ends early: value = offset).
  status write(const std::byte *from, std::size_t bytes, std::size_t offset) const;
  status read(std::byte *to, std::size_t bytes, std::size_t offset) const;

  bool direct() const { return direct_; }  // bypasses the page cache

 private:
  scratch_file(owned_fd fd, bool direct) : fd_(std::move(fd)), direct_(direct) {}
  owned_fd fd_;
  bool direct_;
};

}  // namespace stillmap::checkpoint
