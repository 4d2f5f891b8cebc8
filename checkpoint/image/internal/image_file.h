// An open file, written and read in whole blocks, past the page cache where that can be.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/image/failure.h"
#include "stillmap/checkpoint/image/internal/file_calls.h"

namespace stillmap::image {

// Memory that can be read and written past the page cache.
class aligned_memory {
 public:
  aligned_memory() = default;
  // Errors: out_of_memory.
  static outcome<aligned_memory> create(std::size_t bytes);
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

// Threads: safe, save for ranges that overlap.
class image_file {
 public:
  // Takes the descriptor over. `direct`: it was opened past the page cache.
  image_file(file_calls &calls, int fd, bool direct) : calls_(&calls), fd_(fd), direct_(direct) {}
  image_file(image_file &&o) noexcept;
  image_file &operator=(image_file &&o) noexcept;
  ~image_file();

  // Errors: the system's; not_supported (no regular file).
  static outcome<image_file> open_to_read(file_calls &calls, int directory, const std::string &name,
                                          bool direct);

  // All of it. Requires, for all: `offset` and sizes are multiples of block_bytes where direct().
  // Memory that is not aligned goes through the page cache, or through memory that is.
  // Errors: the system's; corrupt (read: the file ends before).
  done write(bytes_view from, std::uint64_t offset);
  done read(std::span<std::byte> to, std::uint64_t offset);

  // After a write refused as not aligned: through the page cache from now on. False: it was
  // already.
  bool give_up_direct();

  done sync_data();
  done truncate(std::uint64_t bytes);
  outcome<std::uint64_t> size() const;
  void drop_cached();

  bool direct() const { return direct_; }
  int fd() const { return fd_; }
  file_calls &calls() const { return *calls_; }

 private:
  done read_aligned(std::span<std::byte> to, std::uint64_t offset);

  file_calls *calls_;
  int fd_;
  std::atomic<bool> direct_;
};

}  // namespace stillmap::image
