// The blocks of an arena that other streams use, from the first record_use until those streams have passed.
// Internal. docs/allocator_streams.md#a-block-and-its-streams
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stillmap/allocators/engine/pending_frees.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// Threads: externally synchronised.
class block_uses {
 public:
  // The block at `address` is used on a stream. May run out of host memory, and then changes nothing.
  void add(std::uint64_t address, stream_ref other);
  // It is freed; its memory waits. Requires: add().
  pending_block &defer(std::uint64_t address);
  bool is_deferred(std::uint64_t address) const;
  // Its streams have passed.
  void complete(std::uint64_t address);
  std::size_t deferred() const { return deferred_; }  // blocks

  // Whether blocks are used on `s`, and the same as stream_use::forget for these uses. What growth has taken from
  // the queue is not concerned.
  bool has_uses_on(stream_ref s);
  void forget(stream_ref s, std::uint64_t number, const fence &behind);

  // Freed blocks, with an event recorded on each stream where that was possible; the next growth takes them.
  pending_list queue;

 private:
  template <class Act>
  void each_on(stream_ref s, Act act);

  static constexpr std::size_t most_spare = 64;
  using map = std::unordered_map<std::uint64_t, pending_block>;
  map all_;  // by address
  std::size_t deferred_ = 0;
  std::vector<map::node_type> spare_;  // of blocks that are free again, each with room for a use
};

}  // namespace stillmap
