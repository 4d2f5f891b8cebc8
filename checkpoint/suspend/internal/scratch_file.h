// A file without a name: it is gone when it is closed, or when the process dies.
#pragma once

#include <cstddef>
#include <string>

#include "stillmap/vmm/error.h"

namespace stillmap::checkpoint {

// Reads and writes go past the page cache where the file system can, since the contents are larger
// than it should be filled with. Not through io_uring: container runtimes commonly forbid it, and
// a few threads keep a disk busy too.
// Threads: safe, for ranges that do not overlap.
class scratch_file {
 public:
  // What offsets, sizes and addresses are multiples of.
  static constexpr std::size_t alignment = 4096;

  // `bytes` of room in the file system of `directory`, set aside now.
  // Errors: the system's (no such directory, not permitted, no space: value = bytes).
  static result<scratch_file> create(const std::string &directory, std::size_t bytes);
  scratch_file(scratch_file &&o) noexcept;
  scratch_file &operator=(scratch_file &&o) noexcept;
  ~scratch_file();

  // Errors: the system's: value = offset. corrupt (the file ends early).
  status write(const std::byte *from, std::size_t bytes, std::size_t offset) const;
  status read(std::byte *to, std::size_t bytes, std::size_t offset) const;

  bool direct() const { return direct_; }  // past the page cache

 private:
  scratch_file(int fd, bool direct) : fd_(fd), direct_(direct) {}
  int fd_ = -1;
  bool direct_ = false;
};

}  // namespace stillmap::checkpoint
