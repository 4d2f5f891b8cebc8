// Tells programs that repeat themselves from others, by what an arena holds when it needs pages.
// Internal. docs/allocator.md#placement
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stillmap {

// The requests that committed memory could not serve, each with the bytes and the number of blocks
// that were live then. A loop passes through the same values in each iteration, wherever its blocks
// lie. A program with random sizes does not.
//
// Threads: externally synchronised. Allocates host memory with the first request.
class growth_pattern {
 public:
  void add(std::uint64_t live_bytes, std::uint64_t live_blocks, std::uint64_t bytes) {
    if (seen_.empty()) seen_.resize(remembered);
    std::uint64_t key = live_bytes * 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 32) ^ live_blocks) * 0xD6E8FEB86659FD93u;
    key = (key ^ (key >> 32) ^ bytes) * 0xD6E8FEB86659FD93u;
    if ((key & unsampled_) != 0) return;
    std::uint64_t &slot = seen_[(key >> 32) % remembered];
    recent_ = recent_ << 1 | (slot == key ? 1 : 0);
    slot = key;
    if (count_ < 64) ++count_;
    // An iteration may have more such requests than are remembered: then every other one counts.
    if (++since_thinned_ < remembered / 8 || recurs()) return;
    since_thinned_ = 0;
    if (unsampled_ < most_unsampled) unsampled_ = unsampled_ * 2 + 1;
  }
  // At least three quarters of the latest 32 requests came before.
  bool recurs() const { return count_ >= 32 && std::popcount(recent_ << 32) >= 24; }
  // Of the latest 64 at most five eighths did.
  bool varies() const { return count_ == 64 && !recurs() && std::popcount(recent_) <= 40; }
  std::size_t host_bytes() const { return seen_.capacity() * sizeof(std::uint64_t); }

 private:
  static constexpr std::size_t remembered = 4096;
  static constexpr std::uint64_t most_unsampled = 255;
  std::vector<std::uint64_t> seen_;
  std::uint64_t unsampled_ = 0;  // keys with one of these bits are ignored
  std::size_t since_thinned_ = 0;
  std::uint64_t recent_ = 0;  // a bit for each of the latest: it came before
  unsigned count_ = 0;
};

}  // namespace stillmap
