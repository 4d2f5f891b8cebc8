#include "stillmap/allocators/kv/block_memory.h"

#include "stillmap/allocators/kv/internal/block_store.h"
#include "stillmap/allocators/kv/internal/group_store.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv {

result<std::unique_ptr<block_memory>> block_memory::create(const stillmap::device &d,
                                                           block_memory_options options) {
  return with_host_memory(
      "kv::block_memory::create", [&]() -> result<std::unique_ptr<block_memory>> {
        STILLMAP_ASSIGN_OR_RETURN(
            block_store made, create_block_store(d, {.shape = options.shape,
                                                     .tokens_per_block = options.tokens_per_block,
                                                     .blocks = options.blocks,
                                                     .layers_per_range = options.layers_per_range,
                                                     .pool = options.pool,
                                                     .tag = options.tag}));
        return std::unique_ptr<block_memory>(
            new block_memory(made.layout, std::move(made.groups), options.blocks));
      });
}

block_memory::block_memory(kv::layout l, std::unique_ptr<group_store> store, std::size_t blocks)
    : layout_(l),
      store_(std::move(store)),
      states_(blocks, state::none),
      needs_(store_->groups(), 0) {
  pending_.reserve(blocks);
}

block_memory::~block_memory() = default;

device_address block_memory::tensor(std::uint32_t layer, std::uint32_t tensor) const {
  return store_->address(layout_.range_of(layer), 0) + layout_.offset_in_range(layer, tensor);
}

virtual_range block_memory::range() const {
  return store_->block()->range();
}

std::uint64_t block_memory::generation() const {
  return store_->block()->generation();
}

// ---- blocks ----------------------------------------------------------------------------------------

status block_memory::check(std::size_t first, std::size_t count) const {
  if (first <= blocks() && count <= blocks() - first) return {};
  return make_error(errc::invalid_argument, "there are no such blocks",
                    first > SIZE_MAX - count ? SIZE_MAX : first + count, blocks(),
                    error_unit::items);
}

bool block_memory::has_memory(std::size_t block) const {
  const page_span pages = layout_.pages_of(block, 1);
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (!store_->mapped(static_cast<group_index>(g))) return false;
  }
  return true;
}

bool block_memory::waits(std::size_t block) const {
  const page_span pages = layout_.pages_of(block, 1);
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (store_->waiting(static_cast<group_index>(g))) return true;
  }
  return false;
}

void block_memory::want(std::size_t block) {
  const page_span pages = layout_.pages_of(block, 1);
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (needs_[g]++ == 0) store_->want(static_cast<group_index>(g));
  }
}

void block_memory::give_up(std::size_t block) {
  const page_span pages = layout_.pages_of(block, 1);
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (--needs_[g] == 0) store_->give_up(static_cast<group_index>(g));
  }
}

status block_memory::commit(std::size_t first, std::size_t count) {
  const operation_scope scope("kv::block_memory::commit");
  STILLMAP_RETURN_IF_ERROR(check(first, count));
  for (std::size_t b = first; b < first + count; ++b) {
    if (states_[b] == state::committed || states_[b] == state::pending) continue;
    want(b);
    if (states_[b] == state::withdrawn) {
      states_[b] = state::pending;
      ++stats_.pending;
    } else if (has_memory(b)) {
      states_[b] = state::committed;
      ++stats_.committed;
    } else {
      states_[b] = state::pending;
      pending_.push_back(static_cast<std::uint32_t>(b));
      ++stats_.pending;
    }
  }
  return {};
}

status block_memory::decommit(std::size_t first, std::size_t count) {
  const operation_scope scope("kv::block_memory::decommit");
  STILLMAP_RETURN_IF_ERROR(check(first, count));
  for (std::size_t b = first; b < first + count; ++b) {
    if (states_[b] == state::committed) {
      states_[b] = state::none;
      --stats_.committed;
    } else if (states_[b] == state::pending) {
      states_[b] = state::withdrawn;
      --stats_.pending;
    } else {
      continue;
    }
    give_up(b);
  }
  return {};
}

bool block_memory::is_committed(std::size_t first, std::size_t count) const {
  if (!check(first, count)) return false;
  for (std::size_t b = first; b < first + count; ++b) {
    if (states_[b] != state::committed) return false;
  }
  return true;
}

std::vector<std::pair<std::size_t, std::size_t>> block_memory::committed_ranges() const {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  for (std::size_t b = 0; b < blocks(); ++b) {
    if (states_[b] != state::committed) continue;
    if (!all.empty() && all.back().first + all.back().second == b) {
      ++all.back().second;
    } else {
      all.emplace_back(b, 1);
    }
  }
  return all;
}

// ---- steps -----------------------------------------------------------------------------------------

status block_memory::prepare(stream_ref stream) {
  const operation_scope scope("kv::block_memory::prepare");
  STILLMAP_RETURN_IF_ERROR(group_store::check(stream));
  if (store_->suspended()) return suspended_error();
  return store_->start(stream);
}

status block_memory::begin_step() {
  const operation_scope scope("kv::block_memory::begin_step");
  if (store_->suspended()) return suspended_error();
  ++stats_.steps;
  if (pending_.empty() && store_->settled()) return {};
  if (!store_->idle()) ++stats_.steps_that_waited;
  const status done = store_->finish();
  take_ready();
  return done;
}

// After the worker: blocks all of whose page groups have memory are committed. Where a wish failed, they give up the
// others; where one came after the latest prepare(), it waits for the next.
void block_memory::take_ready() {
  std::size_t still = 0;
  for (const std::uint32_t b : pending_) {
    if (states_[b] == state::withdrawn) {
      states_[b] = state::none;
    } else if (has_memory(b)) {
      states_[b] = state::committed;
      --stats_.pending;
      ++stats_.committed;
    } else if (waits(b)) {
      pending_[still++] = b;
    } else {
      states_[b] = state::none;
      --stats_.pending;
      give_up(b);
    }
  }
  pending_.resize(still);
}

result<std::size_t> block_memory::trim() {
  const operation_scope scope("kv::block_memory::trim");
  if (store_->suspended()) return suspended_error();
  const status before = store_->finish();
  take_ready();
  if (!before && !before.error().is(errc::out_of_memory)) return tl::unexpected(before.error());
  auto returned = store_->settle();
  take_ready();
  return returned;
}

block_memory_stats block_memory::stats() const {
  block_memory_stats now = stats_;
  now.mapped_bytes = store_->mapped_groups() * layout_.group_bytes();
  return now;
}

}  // namespace stillmap::kv
