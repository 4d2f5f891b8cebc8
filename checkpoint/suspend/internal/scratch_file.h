// An unnamed temporary file (O_TMPFILE): it ceases to exist when it is closed or the process ends;
// forked children do not have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap::checkpoint {

// Uses direct I/O where the file system can: the contents would evict everything else from the page
// cache. Uses threads instead of io_uring, which container runtimes commonly forbid.
// A checksum (XXH3-64) of each 64 KiB stays in host memory, so contents that the disk changed are an
// error.
// Threads: safe, for ranges that do not overlap.
class scratch_file {
 public:
  static constexpr std::size_t block_bytes = std::size_t{64} << 10;  // that one checksum covers

  // Creates a file in the directory and allocates `bytes` of disk space.
  // Errors: the system's (no such directory, not permitted, no space: value = bytes), out_of_memory
  //         (the directory is host memory, which has no room: as check_host_room).
  static result<scratch_file> create(const std::string &directory, std::size_t bytes);

  // Requires: addresses and sizes are multiples of 4096, offsets of block_bytes; a range that is read
  //           begins and ends with one that was written, or at a block.
  // Errors:   the system's (value = offset), corrupt (the file ends early, or its contents changed:
  //           value = offset).
  status write(const std::byte *from, std::size_t bytes, std::size_t offset);
  status read(std::byte *to, std::size_t bytes, std::size_t offset) const;

  bool direct() const { return direct_; }  // bypasses the page cache

 private:
  scratch_file(fork_closed_fd fd, bool direct, std::size_t blocks)
      : fd_(std::move(fd)), direct_(direct), checksums_(blocks) {}
  fork_closed_fd fd_;
  bool direct_;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace stillmap::checkpoint
