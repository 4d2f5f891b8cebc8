// Tells programs that repeat themselves from others, by what an arena holds when the fast path cannot
// serve a request. Internal. docs/allocator_placement.md#which-programs-repeat-themselves
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stillmap/allocators/engine/policy.h"

namespace stillmap {

// The requests that were searched for, each with the bytes and the number of blocks that were live
// then. A loop passes through the same values in each iteration, wherever its blocks lie. A program
// with random sizes does not.
//
// Threads: externally synchronised. add() may allocate host memory, and then changes nothing.
class growth_pattern {
 public:
  // A hash of a request and of what is live.
  static std::uint64_t key_of(std::uint64_t live_bytes, std::uint64_t live_blocks,
                              std::uint64_t bytes) {
    std::uint64_t key = live_bytes * 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 32) ^ live_blocks) * 0xD6E8FEB86659FD93u;
    return (key ^ (key >> 32) ^ bytes) * 0xD6E8FEB86659FD93u;
  }
  // False: the request does not count.
  bool add(std::uint64_t live_bytes, std::uint64_t live_blocks, std::uint64_t bytes) {
    const std::uint64_t key = key_of(live_bytes, live_blocks, bytes);
    if ((key & unsampled_) != 0) return false;
    count(key);
    return true;
  }
  // The program repeats itself: requests recur, and have for a while. In a loop, what is new comes first
  // and nothing later; in a program of which only parts recur, it keeps coming, and is asked for more.
  bool repeats() const {
    return recurs() &&
           recurring_ >= std::min(new_ / policy::new_per_recurring, policy::max_recurring_asked);
  }
  // Of the latest 64 at most five eighths did.
  bool varies() const {
    return count_ == 64 && !recurs() && of_64_ <= policy::max_recurring_of_varying_64;
  }
  std::size_t host_bytes() const { return seen_.capacity() * sizeof(std::uint64_t); }

 private:
  static constexpr std::size_t remembered = 4096, at_first = 512;  // a stream may need memory once
  static constexpr std::uint64_t most_unsampled = 255, most_unsampled_of_loops = 7;

  // At least three quarters of the latest 32 requests came before.
  bool recurs() const { return count_ >= 32 && of_32_ >= policy::min_recurring_of_32; }

  [[gnu::noinline]] void count(std::uint64_t key) {
    if (seen_.size() < remembered && 8 * filled_ >= seen_.size()) grow();
    std::uint64_t &slot = slot_of(key);
    filled_ += slot == 0;
    const std::uint64_t came_before = slot == key ? 1 : 0;
    of_32_ += static_cast<unsigned>(came_before - (recent_ >> 31 & 1));
    of_64_ += static_cast<unsigned>(came_before - (recent_ >> 63));
    recent_ = recent_ << 1 | came_before;
    slot = key;
    if (count_ < 64) ++count_;
    new_ += 1 - came_before;
    recurring_ = recurs() ? recurring_ + 1 : recurring_ - std::min<std::uint64_t>(recurring_, 8);
    // An iteration may have more such requests than are remembered: then every other one counts. A
    // program that repeats itself is watched at less cost.
    if (++since_thinned_ < remembered / 8) return;
    since_thinned_ = 0;
    if (unsampled_ >= (recurs() ? most_unsampled_of_loops : most_unsampled)) return;
    unsampled_ = unsampled_ * 2 + 1;
    new_ /= 2;
    recurring_ /= 2;
  }

  std::uint64_t &slot_of(std::uint64_t key) { return seen_[(key >> 32) & (seen_.size() - 1)]; }
  void grow() {
    std::vector<std::uint64_t> old(std::max(2 * seen_.size(), at_first));
    old.swap(seen_);
    filled_ = 0;
    for (const std::uint64_t key : old) {
      if (key == 0) continue;
      filled_ += slot_of(key) == 0;
      slot_of(key) = key;
    }
  }

  std::vector<std::uint64_t> seen_;  // a hash table without chains; 0: empty
  std::size_t filled_ = 0;
  std::uint64_t unsampled_ = 0;  // keys with one of these bits are ignored
  std::size_t since_thinned_ = 0;
  std::uint64_t recent_ = 0;        // a bit for each of the latest: it came before
  unsigned of_32_ = 0, of_64_ = 0;  // how many of the latest 32 and 64 did
  unsigned count_ = 0;
  std::uint64_t new_ = 0;  // requests that did not come before
  // Requests for which recurs() held, less eight for each later one for which it did not.
  std::uint64_t recurring_ = 0;
};

}  // namespace stillmap
