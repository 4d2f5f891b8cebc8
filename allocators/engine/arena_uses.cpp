// Blocks that other streams use, and what becomes of them when they are freed.
#include <algorithm>

#include "stillmap/allocators/engine/arena.h"

namespace stillmap {
namespace {

constexpr std::size_t most_spare_uses = 64;

}  // namespace

bool arena::record_use(std::uint64_t address, stream_ref other) {
  if (usable_size(address) == 0) return false;
  if (serves(other)) return true;
  add_use(address, other);
  const block_ref block = blocks_.find(address);
  if (block.in_slab()) {
    const unsigned place = block.index();
    block.as_slab()->cross_stream[place / 64] |= std::uint64_t{1} << (place % 64);
  } else {
    block.as_extent()->cross_stream = true;
  }
  return true;
}

// May run out of host memory, and then changes nothing.
void arena::add_use(std::uint64_t address, stream_ref other) {
  const auto known = uses_.find(address);
  if (known != uses_.end()) {
    std::vector<stream_use> &uses = known->second.uses;
    const auto same = [&](const stream_use &u) { return u.is_on(other); };
    if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back({.stream = other});
    return;
  }
  if (spare_uses_.empty()) {
    spare_uses_.reserve(most_spare_uses);
    pending_block made;
    made.address = address;
    made.uses.push_back({.stream = other});
    uses_.try_emplace(address, std::move(made));
    return;
  }
  use_map::node_type again = std::move(spare_uses_.back());
  spare_uses_.pop_back();
  again.key() = again.mapped().address = address;
  again.mapped().uses.push_back({.stream = other});
  uses_.insert(std::move(again));
}

pending_block &arena::defer_free(std::uint64_t address) {
  const block_ref block = blocks_.find(address);
  pending_block &b = uses_.find(address)->second;
  b.freed = true;
  ++pending_blocks_;
  if (block.in_slab()) {
    slab &s = *block.as_slab();
    count_free(s.block_bytes, s.slack[block.index()]);
    counters_.pending_free += s.block_bytes;
  } else {
    extent &s = *block.as_extent();
    s.allocated = false;
    count_free(s.bytes, s.slack);
    counters_.pending_free += s.bytes;
  }
  return b;
}

// Calls act(use) for each use on `s` that is in no queue. A block that another thread is freeing is left
// to it.
template <class Act>
void arena::each_use_on(stream_ref s, Act act) {
  const auto of_block = [&](pending_block &b) {
    for (stream_use &u : b.uses) {
      if (u.is_on(s)) act(u);
    }
  };
  for (auto &[address, b] : uses_) {
    if (!b.freed) of_block(b);
  }
  deferred.each(of_block);
}

bool arena::has_uses_on(stream_ref s) {
  bool any = false;
  each_use_on(s, [&](const stream_use &) { any = true; });
  return any;
}

void arena::forget_uses(stream_ref s, std::uint64_t number, const fence &behind) {
  each_use_on(s, [&](stream_use &u) { u.forget(number, behind); });
}

void arena::complete_free(std::uint64_t address) {
  const block_ref block = blocks_.find(address);
  use_map::node_type done = uses_.extract(address);
  --pending_blocks_;
  done.mapped().uses.clear();
  done.mapped().freed = false;
  if (spare_uses_.size() < spare_uses_.capacity()) spare_uses_.push_back(std::move(done));
  if (block.in_slab()) {
    slab &s = *block.as_slab();
    const unsigned place = block.index();
    s.cross_stream[place / 64] &= ~(std::uint64_t{1} << (place % 64));
    counters_.pending_free -= s.block_bytes;
    return_to_slab(s, place);
  } else {
    extent &s = *block.as_extent();
    s.cross_stream = false;
    counters_.pending_free -= s.bytes;
    cache(s);
  }
}

}  // namespace stillmap
