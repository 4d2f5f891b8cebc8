#include "bench/replay/internal/torch_heap.h"

#include <algorithm>

namespace stillmap::replay {
namespace {

// PyTorch's blocks are multiples of this; events have the sizes that were requested.
constexpr std::uint64_t torch_block_bytes = 512;
// Of a block of more than this PyTorch splits off no less.
constexpr std::uint64_t least_split_bytes = std::uint64_t{1} << 20;

}  // namespace

void torch_heap::add_memory(std::uint64_t at, std::uint64_t bytes) {
  remove_memory(at, bytes);  // of a damaged history, that is there twice
  memory_[at] = bytes;
}

void torch_heap::remove_memory(std::uint64_t at, std::uint64_t bytes) {
  const std::uint64_t end = at + bytes;
  auto next = memory_.lower_bound(at);
  if (next != memory_.begin()) {
    const auto before = std::prev(next);
    const std::uint64_t its_end = before->first + before->second;
    if (its_end > at) before->second = at - before->first;
    if (its_end > end) memory_.emplace(end, its_end - end);
  }
  while (next != memory_.end() && next->first < end) {
    const std::uint64_t its_end = next->first + next->second;
    next = memory_.erase(next);
    if (its_end > end) memory_.emplace(end, its_end - end);
  }
}

void torch_heap::undo(const torch_event &e) {
  switch (e.action) {
    case torch_action::alloc:
      blocks_.erase(e.at);
      return;
    case torch_action::free_completed:
      blocks_[e.at] = (e.bytes + torch_block_bytes - 1) / torch_block_bytes * torch_block_bytes;
      return;
    case torch_action::map:
      return remove_memory(e.at, e.bytes);
    case torch_action::unmap:
      return add_memory(e.at, e.bytes);
    default:
      return;
  }
}

trace_failure torch_heap::state(std::uint64_t device_free) const {
  trace_failure out{.device_free = device_free};
  // A gap after a block.
  const auto add_piece = [&](std::uint64_t bytes, std::uint64_t block_before) {
    if (bytes == 0 || (block_before > least_split_bytes && bytes <= least_split_bytes)) return;
    out.cached += bytes;
    ++out.pieces;
    out.largest = std::max(out.largest, bytes);
  };
  auto block = blocks_.begin();
  for (const auto &[at, bytes] : memory_) {
    out.held += bytes;
    const std::uint64_t end = at + bytes;
    std::uint64_t free_from = at, before = 0;
    for (; block != blocks_.end() && block->first < end; ++block) {
      if (block->first > free_from) add_piece(block->first - free_from, before);
      free_from = std::max(free_from, block->first + block->second);
      before = block->second;
    }
    if (free_from < end) add_piece(end - free_from, before);
  }
  return out;
}

}  // namespace stillmap::replay
