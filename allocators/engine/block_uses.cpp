#include "stillmap/allocators/engine/block_uses.h"

#include <algorithm>
#include <utility>

namespace stillmap {

void block_uses::add(std::uint64_t address, stream_ref other) {
  const auto known = all_.find(address);
  if (known != all_.end()) {
    std::vector<stream_use> &uses = known->second.uses;
    const auto same = [&](const stream_use &u) { return u.is_on(other); };
    if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back({.stream = other});
    return;
  }
  if (spare_.empty()) {
    spare_.reserve(most_spare);
    pending_block made;
    made.address = address;
    made.uses.push_back({.stream = other});
    all_.try_emplace(address, std::move(made));
    return;
  }
  map::node_type again = std::move(spare_.back());
  spare_.pop_back();
  again.key() = again.mapped().address = address;
  again.mapped().uses.push_back({.stream = other});
  all_.insert(std::move(again));
}

pending_block &block_uses::defer(std::uint64_t address) {
  pending_block &b = all_.find(address)->second;
  b.freed = true;
  ++deferred_;
  return b;
}

bool block_uses::is_deferred(std::uint64_t address) const {
  const auto use = all_.find(address);
  return use != all_.end() && use->second.freed;
}

void block_uses::complete(std::uint64_t address) {
  map::node_type done = all_.extract(address);
  --deferred_;
  done.mapped().uses.clear();
  done.mapped().freed = false;
  if (spare_.size() < spare_.capacity()) spare_.push_back(std::move(done));
}

// Calls act(use) for each use on `s` that no growth has taken. A block that another thread is freeing is left to
// it.
template <class Act>
void block_uses::each_on(stream_ref s, Act act) {
  const auto of_block = [&](pending_block &b) {
    for (stream_use &u : b.uses) {
      if (u.is_on(s)) act(u);
    }
  };
  for (auto &[address, b] : all_) {
    if (!b.freed) of_block(b);
  }
  queue.each(of_block);
}

bool block_uses::has_uses_on(stream_ref s) {
  bool any = false;
  each_on(s, [&](const stream_use &) { any = true; });
  return any;
}

void block_uses::forget(stream_ref s, std::uint64_t number, const fence &behind) {
  each_on(s, [&](stream_use &u) { u.forget(number, behind); });
}

}  // namespace stillmap
