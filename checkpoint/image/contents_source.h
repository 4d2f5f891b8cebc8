// Where a writer gets the contents of an image from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

// Threads: called by several threads at once, each for its own chunks.
class contents_source {
 public:
  virtual ~contents_source();

  // Returns `room.size()` bytes of the contents from `offset` on: always one chunk. Either fills
  // `room`, which is aligned to block_bytes, and returns it; or returns memory of its own, which
  // must not change until write() returns (preferably aligned: it is written from there).
  // Must not throw.
  virtual result<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) = 0;

  // The digest_of_contents of a chunk under the parent's key (reader::digest_key), if it is known
  // without reading the chunk. Called for chunks that the parent has: chunks with an equal digest,
  // or that of zeros, are not read. Must not throw.
  virtual std::optional<digest> digest_of(std::uint64_t offset, std::size_t bytes);
};

// Contents that are in host memory.
class contents_in_memory final : public contents_source {
 public:
  explicit contents_in_memory(bytes_view contents) : contents_(contents) {}
  result<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override;

 private:
  bytes_view contents_;
};

}  // namespace stillmap::image
