// An open file, written and read in whole blocks, with direct I/O where the file system allows it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/image/internal/file_calls.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

// Host memory aligned for direct I/O.
class aligned_memory {
 public:
  aligned_memory() = default;
  // Errors: out_of_memory.
  static result<aligned_memory> create(std::size_t bytes);
  // Makes it at least `bytes` large; growing loses the contents. Errors: out_of_memory.
  status grow(std::size_t bytes);
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct release {
    void operator()(std::byte *p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, release> memory_;
  std::size_t size_ = 0;
};

inline bool is_aligned(const void *p) {
  return reinterpret_cast<std::uintptr_t>(p) % block_bytes == 0;
}

// Threads: safe for ranges that do not overlap.
class image_file {
 public:
  // Takes ownership of the descriptor. `direct`: it was opened with O_DIRECT.
  image_file(file_calls &calls, int fd, bool direct) : calls_(&calls), fd_(fd), direct_(direct) {}
  image_file(image_file &&o) noexcept;
  image_file &operator=(image_file &&) = delete;
  ~image_file();

  // Errors: not_supported (not a regular file); errors of system calls.
  static result<image_file> open_to_read(file_calls &calls, int directory, const std::string &name,
                                         bool direct);

  // Write and read the whole range. Memory that is not aligned is written through the page cache,
  // and read through an aligned buffer.
  // Requires: where direct(), `offset` and sizes are multiples of block_bytes.
  // Errors:   corrupt (read: the file is too short); errors of system calls.
  status write(bytes_view from, std::uint64_t offset);
  status read(std::span<std::byte> to, std::uint64_t offset);

  // Switches from direct I/O to the page cache. False: direct I/O was off already.
  bool give_up_direct();

  status sync_data();
  status truncate(std::uint64_t bytes);
  result<std::uint64_t> size() const;
  void drop_cached();

  bool direct() const { return direct_; }
  int fd() const { return fd_; }
  file_calls &calls() const { return *calls_; }

 private:
  status read_aligned(std::span<std::byte> to, std::uint64_t offset);

  file_calls *calls_;
  int fd_;
  std::atomic<bool> direct_;
};

}  // namespace stillmap::image
