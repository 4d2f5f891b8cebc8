// Compression of chunks. docs/image_format.md#chunk-records
#pragma once

#include <memory>
#include <span>

#include "stillmap/checkpoint/image/chunk_table.h"

namespace stillmap::image {

enum class codec : std::uint8_t {
  none,
  lz4,   // nearly as fast as memory
  zstd,  // smaller and slower
};

// Compresses and decompresses for one thread, whose contexts it keeps.
// Threads: externally synchronised.
class compressor {
 public:
  compressor();
  ~compressor();
  compressor(compressor &&) noexcept;
  compressor &operator=(compressor &&) noexcept;

  // Compresses into `room` and returns the size; 0: less than an eighth was saved, or there is no
  // host memory. Requires: room has at least worth_storing(from.size()) bytes.
  std::size_t compress(codec kind, bytes_view from, std::span<std::byte> room);
  // Decompresses into exactly `to`.
  // Errors: corrupt (a damaged block, or one of another size); the caller adds the position.
  status decompress(chunk_kind kind, bytes_view from, std::span<std::byte> to);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// The largest compressed size that is stored instead of the chunk itself.
constexpr std::size_t worth_storing(std::size_t bytes) {
  return bytes - bytes / 8;
}

}  // namespace stillmap::image
