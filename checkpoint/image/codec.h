// Compressors of chunks. docs/image_format.md#chunk-records
#pragma once

#include <memory>
#include <span>

#include "stillmap/checkpoint/image/chunk_table.h"

namespace stillmap::image {

enum class codec : std::uint8_t {
  none,
  lz4,   // about as fast as memory
  zstd,  // smaller, and slower
};

// What one thread needs to compress and decompress, so that it is made once.
class compressor {
 public:
  compressor();
  ~compressor();
  compressor(compressor &&) noexcept;
  compressor &operator=(compressor &&) noexcept;

  // Compresses into `room`. 0: nothing was saved that would be worth it: less than an eighth; or
  // there is no memory for it. Requires: room has worth_storing(from.size()) bytes.
  std::size_t compress(codec how, bytes_view from, std::span<std::byte> room);
  // Into exactly `to`. Errors: corrupt (more, or fewer bytes, or none of that kind); the caller
  // adds where.
  done decompress(chunk_kind how, bytes_view from, std::span<std::byte> to);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// The most bytes of a compressed chunk that are stored, instead of the chunk itself.
constexpr std::size_t worth_storing(std::size_t bytes) {
  return bytes - bytes / 8;
}

}  // namespace stillmap::image
