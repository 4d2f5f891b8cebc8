// An open file, written and read in whole blocks, with direct I/O where the file system allows it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::checkpoint {

// Threads: safe for ranges that do not overlap.
class block_file {
 public:
  // Takes ownership of the descriptor. `direct`: it was opened with O_DIRECT.
  block_file(file_system &files, int fd, bool direct) : files_(&files), fd_(fd), direct_(direct) {}
  block_file(block_file &&o) noexcept;
  block_file &operator=(block_file &&) = delete;
  ~block_file();

  // Errors: not_supported (not a regular file); errors of system calls.
  static result<block_file> open_to_read(file_system &files, int directory, const std::string &name,
                                         bool direct);

  // Write and read the whole range. Memory that is not aligned is written through the page cache,
  // and read through an aligned buffer.
  // Requires: where direct(), `offset` and sizes are multiples of io_block_bytes.
  // Errors:   corrupt (read: the file is too short); errors of system calls.
  status write(std::span<const std::byte> from, std::uint64_t offset);
  status read(std::span<std::byte> to, std::uint64_t offset);

  // Switches from direct I/O to the page cache. False: direct I/O was off already.
  bool give_up_direct();

  status sync_data();
  status truncate(std::uint64_t bytes);
  result<std::uint64_t> size() const;
  void drop_cached();

  bool direct() const { return direct_; }
  int fd() const { return fd_; }
  file_system &files() const { return *files_; }

 private:
  status read_aligned(std::span<std::byte> to, std::uint64_t offset);

  file_system *files_;
  int fd_;
  std::atomic<bool> direct_;
};

}  // namespace stillmap::checkpoint
