// Baseline: the segment policy by which frameworks have long cached device memory, implemented from
// its published description. Requests are rounded to 512 bytes and cut, best fit first, out of
// large segments that are released only when memory is short.
//
//  - Requests up to 1 MiB use segments of 2 MiB. Larger requests use segments of their own: 20 MiB
//    for requests below 10 MiB, a multiple of 2 MiB above. Blocks of the two kinds never mix.
//  - A block belongs to one stream. A freed block that other streams used waits for events.
//  - The smallest sufficient free block is taken; a remainder worth keeping is split off, and
//    merges with free neighbours later.
//  - When the driver is out of memory, all completely free segments are released, and the request
//    is tried again.
//  - max_split_size: larger free blocks are neither split nor given to smaller requests, and a
//    larger request takes a block that is less than 20 MiB larger. When memory is short, such blocks
//    are released first, as few as suffice.
//  - roundup_power2_divisions: sizes are rounded up to that many steps between powers of two.
//
// Expanding: one segment for each stream and kind, a reservation larger than the device, which is
// mapped 2 or 20 MiB at a time. When memory is short, pages of free blocks are unmapped and
// released, and segments without any are given up.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "bench/replay/replay_target.h"

namespace stillmap::replay {

struct segment_block {
  std::uint64_t at = 0;
  std::size_t size = 0;
  stream_handle on = nullptr;
  bool small = false;
  bool free = true;
  bool mapped = true;               // false: addresses of an expanding segment without memory
  unsigned waiting = 0;             // events that have not passed
  segment_block *before = nullptr;  // neighbours in the segment
  segment_block *after = nullptr;
  struct expanding_segment *of = nullptr;
  std::vector<stream_handle> uses;  // by other streams
};

struct expanding_segment {
  virtual_range range;
  std::size_t chunk = 0;  // bytes of a handle
  stream_handle on = nullptr;
  bool small = false;
  std::map<std::uint64_t, physical_handle> chunks;  // mapped, by address
};

class segments final : public replay_target {
 public:
  segments(const device &d, const target_options &o, bool expanding);
  ~segments() override;

  result<void *> allocate(std::size_t bytes, stream_ref on) override;
  status free(void *at) override;
  status record_use(void *at, stream_ref on) override;
  std::uint64_t committed_bytes() const override { return held_.now(); }
  std::uint64_t peak_committed_bytes() const override { return held_.peak(); }
  std::optional<std::uint64_t> host_bytes() const override;
  std::optional<std::uint64_t> retries() const override { return retries_; }
  std::optional<heap_snapshot> snapshot() const override;

 private:
  struct by_fit {  // a stream's blocks side by side, small before large
    bool operator()(const segment_block *a, const segment_block *b) const {
      if (a->on != b->on) return std::less<>()(a->on, b->on);
      return a->size != b->size ? a->size < b->size : a->at < b->at;
    }
  };
  struct by_address {
    bool operator()(const segment_block *a, const segment_block *b) const { return a->at < b->at; }
  };
  using free_set = std::set<segment_block *, by_fit>;
  struct waiting_event {
    event_handle event;
    segment_block *block;
  };

  free_set &free_of(const segment_block &b) { return free_[b.small ? 0 : 1]; }
  segment_block *new_block();
  void recycle(segment_block *b);
  std::size_t rounded(std::size_t bytes) const;
  bool splits(const segment_block &b, std::size_t size) const;
  segment_block *best_fit(std::size_t size, stream_handle on, bool small);
  void split(segment_block *b, std::size_t size);
  segment_block *join(segment_block *left, segment_block *right);
  segment_block *put_back(segment_block *b);
  result<segment_block *> more(std::size_t size, stream_handle on, bool small);
  result<segment_block *> new_segment(std::size_t size, stream_handle on, bool small);
  status take_passed_events(bool wait);
  result<bool> release_oversized(std::size_t size, stream_handle on);
  status release_cached();
  status release_segment(segment_block *b);

  // Expanding: segments_expanding.cpp.
  result<segment_block *> expand(std::size_t size, stream_handle on, bool small);
  result<segment_block *> new_expanding_segment(stream_handle on, bool small);
  segment_block *room_for(std::size_t size, stream_handle on, bool small);
  result<segment_block *> map_front(segment_block *b, std::size_t size);
  status create_chunks(expanding_segment &s, virtual_range range);
  void release_chunks(expanding_segment &s, virtual_range range);
  status release_pages_of(segment_block *b);
  status drop_expanding_segment(segment_block *b);
  void drop_expanding_segments();

  device device_;
  const driver &drv_;
  bool expanding_;
  std::size_t max_split_size_, divisions_;
  held_bytes held_;
  free_set free_[2];  // free and mapped: small, large
  std::set<segment_block *, by_address> unmapped_[2];
  std::unordered_map<std::uint64_t, segment_block *> given_;
  std::map<stream_handle, std::deque<waiting_event>> events_;  // in the order of each stream
  std::vector<event_handle> spare_events_;
  std::deque<std::unique_ptr<expanding_segment>> growing_;
  std::deque<segment_block> storage_;
  std::vector<segment_block *> spare_;
  std::uint64_t retries_ = 0;
};

}  // namespace stillmap::replay
