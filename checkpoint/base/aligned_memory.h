// Host memory for direct I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::checkpoint {

// Direct I/O reads and writes whole blocks of this size, in memory at a multiple of it.
inline constexpr std::size_t io_block_bytes = 4096;

// Host memory at a multiple of io_block_bytes. Threads: externally synchronised.
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

// Rounds up to a multiple of io_block_bytes. Requires: no overflow.
constexpr std::size_t whole_blocks(std::size_t bytes) {
  return round_up(bytes, io_block_bytes);
}

inline bool is_aligned(const void *p) {
  return reinterpret_cast<std::uintptr_t>(p) % io_block_bytes == 0;
}

}  // namespace stillmap::checkpoint
