#include "stillmap/allocators/kv/block_arena.h"

#include <algorithm>

#include "stillmap/allocators/kv/internal/block_store.h"
#include "stillmap/allocators/kv/internal/create_pool.h"
#include "stillmap/allocators/kv/internal/group_store.h"
#include "stillmap/allocators/kv/internal/pool_release.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::kv {

result<std::unique_ptr<block_arena>> block_arena::create(const stillmap::device &d,
                                                         block_arena_options options) {
  return with_host_memory("kv::block_arena::create", [&]() -> result<std::unique_ptr<block_arena>> {
    STILLMAP_ASSIGN_OR_RETURN(block_store made,
                              create_block_store(d, {.shape = options.shape,
                                                     .tokens_per_block = options.tokens_per_block,
                                                     .blocks = options.blocks,
                                                     .layers_per_range = options.layers_per_range,
                                                     .pool = options.pool,
                                                     .tag = options.tag}));
    return std::unique_ptr<block_arena>(
        new block_arena(made.layout, std::move(made.groups), options));
  });
}

block_arena::block_arena(kv::layout l, std::unique_ptr<group_store> store,
                         const block_arena_options &options)
    : layout_(l),
      blocks_(options.blocks),
      spare_blocks_(std::min(options.spare_blocks, options.blocks)),
      store_(std::move(store)),
      references_(blocks_, 0) {
  const std::uint32_t cells = cell_of(static_cast<block_id>(blocks_ - 1)) + 1;
  cells_.resize(cells);
  needs_.assign(store_->groups(), 0);
  pending_.reserve(cells);
  std::uint32_t most = 0;
  for (std::uint32_t c = 0; c < cells; ++c) most = std::max(most, blocks_of(c));
  lists_.assign(std::size_t{most} + 2, none);
}

block_arena::~block_arena() = default;

device_address block_arena::tensor(std::uint32_t layer, std::uint32_t tensor) const {
  return store_->address(layout_.range_of(layer), 0) + layout_.offset_in_range(layer, tensor);
}

virtual_range block_arena::range() const {
  return store_->block()->range();
}

const stillmap::device &block_arena::device() const {
  return store_->device();
}

const std::string &block_arena::tag() const {
  return store_->block()->tag();
}

bool block_arena::settled() const {
  return pending_.empty() && store_->settled();
}

std::uint64_t block_arena::generation() const {
  return store_->block()->generation();
}

// ---- cells -----------------------------------------------------------------------------------------

std::uint32_t block_arena::cell_of(block_id b) const {
  if (layout_.block_stride() >= layout_.page_bytes()) return b;
  return static_cast<std::uint32_t>(b * layout_.block_stride() / layout_.page_bytes());
}

block_id block_arena::first_block(std::uint32_t c) const {
  if (layout_.block_stride() >= layout_.page_bytes()) {
    return std::min(c, static_cast<block_id>(blocks_));
  }
  const std::size_t first = divide_up(c * layout_.page_bytes(), layout_.block_stride());
  return static_cast<block_id>(std::min(first, blocks_));
}

std::size_t block_arena::list_of(std::uint32_t c) const {
  const std::uint32_t n = free_blocks_of(c);
  return n == blocks_of(c) ? lists_.size() - 1 : n;
}

void block_arena::link(std::uint32_t c) {
  if (free_blocks_of(c) == blocks_of(c)) free_whole_ += blocks_of(c);
  std::uint32_t &head = lists_[list_of(c)];
  cells_[c].previous = none;
  cells_[c].next = head;
  if (head != none) cells_[head].previous = c;
  head = c;
}

void block_arena::unlink(std::uint32_t c) {
  if (free_blocks_of(c) == blocks_of(c)) free_whole_ -= blocks_of(c);
  const cell &gone = cells_[c];
  (gone.previous == none ? lists_[list_of(c)] : cells_[gone.previous].next) = gone.next;
  if (gone.next != none) cells_[gone.next].previous = gone.previous;
}

// Changes the counts of a ready cell.
template <class Change>
void block_arena::change(std::uint32_t c, const Change &change) {
  unlink(c);
  free_ready_ -= free_blocks_of(c);
  change(cells_[c]);
  free_ready_ += free_blocks_of(c);
  link(c);
}

void block_arena::add_memory(std::uint32_t c) {
  const page_span pages = layout_.pages_of(first_block(c), blocks_of(c));
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (needs_[g]++ == 0) store_->want(static_cast<group_index>(g));
  }
  cells_[c].wanted = true;
  pending_.push_back(c);
  free_pending_ += blocks_of(c);
}

// Of a cell that is free and not ready. Returns the page groups that no cell needs any more.
std::size_t block_arena::remove_memory(std::uint32_t c) {
  const page_span pages = layout_.pages_of(first_block(c), blocks_of(c));
  std::size_t given_up = 0;
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (--needs_[g] != 0) continue;
    store_->give_up(static_cast<group_index>(g));
    ++given_up;
  }
  cells_[c].wanted = false;
  lowest_unwanted_ = std::min(lowest_unwanted_, c);
  return given_up;
}

// The same of a cell that is free and ready.
std::size_t block_arena::take_memory(std::uint32_t c) {
  unlink(c);
  cells_[c].ready = false;
  free_ready_ -= blocks_of(c);
  return remove_memory(c);
}

// The lowest addresses first: the fewest calls map and unmap what is adjacent.
std::uint32_t block_arena::next_cell_without_memory() {
  while (lowest_unwanted_ < cells_.size() && cells_[lowest_unwanted_].wanted) ++lowest_unwanted_;
  return lowest_unwanted_ < cells_.size() ? lowest_unwanted_ : none;
}

// ---- steps -----------------------------------------------------------------------------------------

status block_arena::prepare(std::span<const growth> growths, stream_ref stream) {
  const operation_scope scope("kv::block_arena::prepare");
  const std::size_t in_cell =
      std::max<std::size_t>(1, layout_.page_bytes() / layout_.block_stride());
  std::size_t blocks = 0, in_free_cells = 0;
  for (const growth &g : growths) {
    STILLMAP_RETURN_IF_ERROR(check_continued(g.after));
    const std::size_t beside = g.after ? free_blocks_of(cell_of(*g.after)) : 0;
    const std::size_t most = std::min(g.blocks, blocks_);  // allocate() says so, if there are fewer
    blocks += most;
    in_free_cells += divide_up(most - std::min(most, beside), in_cell) * in_cell;
  }
  return prepare_cells(blocks, in_free_cells, stream);
}

status block_arena::prepare(std::size_t free_blocks, stream_ref stream) {
  const operation_scope scope("kv::block_arena::prepare");
  return prepare_cells(free_blocks, 0, stream);
}

status block_arena::prepare_cells(std::size_t blocks, std::size_t in_free_cells,
                                  stream_ref stream) {
  STILLMAP_RETURN_IF_ERROR(group_store::check(stream));
  if (store_->suspended()) return suspended_error();
  needed_ = std::min(blocks, blocks_);
  while (free_ready_ + free_pending_ < needed_ || free_whole_ + free_pending_ < in_free_cells) {
    const std::uint32_t c = next_cell_without_memory();
    if (c == none) break;  // allocate() says so, if the blocks are really asked for
    add_memory(c);
  }
  for (std::uint32_t c = lists_.back(); c != none;) {
    const std::uint32_t next = cells_[c].next;
    const std::size_t all = free_ready_ + free_pending_, whole = free_whole_ + free_pending_;
    const std::size_t freed = blocks_of(c);
    if (all < freed + needed_ || whole < freed + in_free_cells + spare_blocks_) break;
    take_memory(c);
    c = next;
  }
  return store_->start(stream);
}

status block_arena::begin_step() {
  const operation_scope scope("kv::block_arena::begin_step");
  if (store_->suspended()) return suspended_error();
  ++stats_.steps;
  if (pending_.empty() && store_->settled()) return {};
  if (!store_->idle()) ++stats_.steps_that_waited;
  const status done = store_->finish();
  take_ready();
  // Page groups of its own for each sequence are a wish: what is free elsewhere will do.
  const bool is_short =
      !done && done.error().is(errc::out_of_memory) && done.error().value > done.error().limit;
  return is_short && free_ready_ >= needed_ ? status{} : done;
}

// After the worker: cells whose page groups all have memory are ready. Where a wish failed, they give up the others;
// where one came after the latest prepare(), it waits for the next.
void block_arena::take_ready() {
  std::size_t still = 0;
  free_pending_ = 0;
  for (const std::uint32_t c : pending_) {
    const page_span pages = layout_.pages_of(first_block(c), blocks_of(c));
    bool complete = true, waits = false;
    for (std::size_t g = pages.first; g < pages.end(); ++g) {
      complete = complete && store_->mapped(static_cast<group_index>(g));
      waits = waits || store_->waiting(static_cast<group_index>(g));
    }
    if (complete) {
      cells_[c].ready = true;
      free_ready_ += blocks_of(c);
      link(c);
    } else if (waits) {
      pending_[still++] = c;
      free_pending_ += blocks_of(c);
    } else {
      remove_memory(c);
    }
  }
  pending_.resize(still);
}

// ---- blocks ----------------------------------------------------------------------------------------

// For `wanted` blocks: a free cell; the cell with the fewest free blocks that has as many; the one with the most.
std::uint32_t block_arena::choose_cell(std::size_t wanted) const {
  const std::size_t empty = lists_.size() - 1;
  if (lists_[empty] != none) return lists_[empty];
  for (std::size_t n = std::min(wanted, empty); n < empty; ++n) {
    if (lists_[n] != none) return lists_[n];
  }
  for (std::size_t n = std::min(wanted, empty); n-- > 1;) {
    if (lists_[n] != none) return lists_[n];
  }
  return none;
}

// Takes free blocks of a ready cell, in order, until `out` is full. Returns how many.
std::size_t block_arena::take(std::uint32_t c, std::span<block_id> out) {
  std::size_t n = 0;
  const block_id end = first_block(c + 1);
  for (block_id b = first_block(c); b < end && n < out.size(); ++b) {
    if (references_[b] != 0) continue;
    references_[b] = 1;
    out[n++] = b;
  }
  change(c, [&](cell &in) {
    in.used += static_cast<std::uint32_t>(n);
    in.last_use = clock_;
  });
  stats_.used += n;
  return n;
}

status block_arena::allocate(std::span<block_id> out, std::optional<block_id> after) {
  const operation_scope scope("kv::block_arena::allocate");
  STILLMAP_RETURN_IF_ERROR(check_continued(after));
  if (out.size() > free_ready_) {
    return make_error(
        errc::out_of_memory, "fewer free blocks have memory: prepare more, or free some",
        out.size() * block_total_bytes(), free_ready_ * block_total_bytes(), error_unit::bytes);
  }
  ++clock_;
  if (after && !out.empty() && cells_[cell_of(*after)].ready &&
      free_blocks_of(cell_of(*after)) != 0) {
    out = out.subspan(take(cell_of(*after), out));
  }
  while (!out.empty()) out = out.subspan(take(choose_cell(out.size()), out));
  return {};
}

status block_arena::check_continued(std::optional<block_id> after) const {
  if (!after) return {};
  STILLMAP_RETURN_IF_ERROR(check(*after));
  if (references_[*after] != 0 && references_[*after] != is_cached) return {};
  return make_error(errc::invalid_argument, "the block that the first one continues is not used",
                    *after);
}

status block_arena::check(block_id b) const {
  if (b < blocks_) return {};
  return make_error(errc::invalid_argument, "there is no such block", b, blocks_);
}

// Marks free blocks as used, all or none, but not in their cells: that finds one that is named twice.
status block_arena::mark(std::span<const block_id> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    status one = check(blocks[i]);
    if (one && references_[blocks[i]] != 0) {
      one =
          make_error(errc::invalid_argument, "the block is not free, or is named twice", blocks[i]);
    }
    if (!one) {
      while (i-- > 0) references_[blocks[i]] = 0;
      return one;
    }
    references_[blocks[i]] = 1;
  }
  return {};
}

template <class Work>
status block_arena::give_memory(std::span<const block_id> blocks, const Work &work) {
  for (const block_id b : blocks) {
    if (!cells_[cell_of(b)].wanted) add_memory(cell_of(b));
  }
  const status done = work();
  take_ready();
  const auto is_ready = [&](block_id b) { return cells_[cell_of(b)].ready; };
  if (!done || std::all_of(blocks.begin(), blocks.end(), is_ready)) return done;
  return make_error(errc::busy, "the worker has not mapped all of the blocks: try again");
}

// Blocks that are marked and have memory.
void block_arena::use(std::span<const block_id> blocks) {
  ++clock_;
  for (const block_id b : blocks) {
    change(cell_of(b), [&](cell &in) {
      ++in.used;
      in.last_use = clock_;
    });
  }
  stats_.used += blocks.size();
}

status block_arena::claim(std::span<const block_id> blocks, stream_ref stream) {
  const operation_scope scope("kv::block_arena::claim");
  STILLMAP_RETURN_IF_ERROR(group_store::check(stream));
  if (store_->suspended()) return suspended_error();
  STILLMAP_RETURN_IF_ERROR(mark(blocks));
  const status given = give_memory(blocks, [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(store_->start(stream));
    return store_->finish();
  });
  if (given) {
    use(blocks);
  } else {
    for (const block_id b : blocks) references_[b] = 0;
  }
  return given;
}

status block_arena::check_rests(std::span<const block_id> blocks) const {
  for (const block_id b : blocks) {
    const page_span pages = layout_.pages_of(first_block(cell_of(b)), blocks_of(cell_of(b)));
    for (std::size_t g = pages.first; g < pages.end(); ++g) {
      if (needs_[g] == 0 && store_->resting(static_cast<group_index>(g))) continue;
      return make_error(errc::busy, "the arena has memory at the block's place: trim() first", b);
    }
  }
  return {};
}

status block_arena::check_settled() const {
  if (store_->suspended()) return suspended_error();
  if (settled()) return {};
  return make_error(errc::busy, "the arena's worker changes its memory: begin_step() first");
}

status block_arena::adopt(std::span<const block_id> blocks, device_address from) {
  const operation_scope scope("kv::block_arena::adopt");
  STILLMAP_RETURN_IF_ERROR(check_settled());
  STILLMAP_RETURN_IF_ERROR(mark(blocks));
  status given = check_rests(blocks);
  if (given) given = give_memory(blocks, [&] { return store_->adopt(from); });
  if (given) {
    use(blocks);
    return given;
  }
  for (const block_id b : blocks) references_[b] = 0;
  for (const std::uint32_t c : pending_) remove_memory(c);  // wishes that were not queued
  pending_.clear();
  free_pending_ = 0;
  return given;
}

status block_arena::retain(std::span<const block_id> blocks) {
  const operation_scope scope("kv::block_arena::retain");
  for (const block_id b : blocks) {
    STILLMAP_RETURN_IF_ERROR(check(b));
    if (references_[b] == 0) return make_error(errc::invalid_argument, "the block is free", b);
    if (references_[b] != is_cached && references_[b] > is_cached - 1 - blocks.size()) {
      return make_error(errc::invalid_argument, "the block has too many references", b);
    }
  }
  ++clock_;
  for (const block_id b : blocks) {
    cells_[cell_of(b)].last_use = clock_;
    if (references_[b] != is_cached) {
      ++references_[b];
      continue;
    }
    references_[b] = 1;
    change(cell_of(b), [](cell &in) { --in.cached, ++in.used; });
    --stats_.cached;
    ++stats_.used;
  }
  return {};
}

status block_arena::release(std::span<const block_id> blocks, contents then) {
  const operation_scope scope("kv::block_arena::release");
  ++clock_;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const status one = release_one(blocks[i], then);
    if (one) continue;
    // A block may be named twice, so what is wrong shows only here.
    while (i-- > 0) {
      const block_id b = blocks[i];
      if (references_[b] != 0 && references_[b] != is_cached) {
        ++references_[b];
        continue;
      }
      const bool kept = references_[b] == is_cached;
      references_[b] = 1;
      change(cell_of(b), [&](cell &in) { in.cached -= kept ? 1 : 0, ++in.used; });
      stats_.cached -= kept ? 1 : 0;
      ++stats_.used;
    }
    return one;
  }
  return {};
}

status block_arena::release_one(block_id b, contents then) {
  STILLMAP_RETURN_IF_ERROR(check(b));
  if (references_[b] == 0 || references_[b] == is_cached) {
    return make_error(errc::invalid_argument, "the block has no reference", b);
  }
  if (--references_[b] != 0) return {};
  const bool keep = then == contents::keep;
  if (keep) references_[b] = is_cached;
  change(cell_of(b), [&](cell &in) {
    --in.used;
    in.cached += keep ? 1 : 0;
    in.last_use = clock_;
  });
  --stats_.used;
  stats_.cached += keep ? 1 : 0;
  return {};
}

status block_arena::drop(std::span<const block_id> blocks) {
  const operation_scope scope("kv::block_arena::drop");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    status one = check(blocks[i]);
    if (one && references_[blocks[i]] != is_cached) {
      one = make_error(errc::invalid_argument, "the block is not cached", blocks[i]);
    }
    if (one) {
      references_[blocks[i]] = 0;
      change(cell_of(blocks[i]), [](cell &in) { --in.cached; });
      --stats_.cached;
      continue;
    }
    while (i-- > 0) {
      references_[blocks[i]] = is_cached;
      change(cell_of(blocks[i]), [](cell &in) { ++in.cached; });
      ++stats_.cached;
    }
    return one;
  }
  return {};
}

status block_arena::evict(std::size_t blocks, std::vector<block_id> &evicted) {
  return with_host_memory("kv::block_arena::evict", [&]() -> status {
    std::vector<std::uint32_t> unused;
    for (std::uint32_t c = 0; c < cells_.size(); ++c) {
      if (cells_[c].ready && cells_[c].cached != 0) unused.push_back(c);
    }
    // Cells that get free first; a clock that has run over is still in order where differences are small.
    std::sort(unused.begin(), unused.end(), [&](std::uint32_t a, std::uint32_t b) {
      if ((cells_[a].used == 0) != (cells_[b].used == 0)) return cells_[a].used == 0;
      return clock_ - cells_[a].last_use > clock_ - cells_[b].last_use;
    });
    blocks = std::min(blocks, stats_.cached);
    evicted.reserve(evicted.size() + std::min(stats_.cached, blocks + lists_.size()));
    for (const std::uint32_t c : unused) {
      if (blocks == 0) break;
      blocks -= std::min<std::size_t>(blocks, cells_[c].cached);
      evict_cell(c, evicted);
    }
    return {};
  });
}

// Of a ready cell. Requires: `evicted` has room.
void block_arena::evict_cell(std::uint32_t c, std::vector<block_id> &evicted) {
  for (block_id b = first_block(c); b < first_block(c + 1); ++b) {
    if (references_[b] != is_cached) continue;
    references_[b] = 0;
    evicted.push_back(b);
  }
  stats_.cached -= cells_[c].cached;
  change(c, [](cell &in) { in.cached = 0; });
}

// ---- memory ----------------------------------------------------------------------------------------

result<std::size_t> block_arena::missing_for(std::size_t blocks) const {
  const operation_scope scope("kv::block_arena::missing_for");
  const std::size_t left = blocks_ - stats_.used - stats_.cached;
  if (blocks > left) {
    return make_error(errc::invalid_argument, "the arena has fewer blocks that are free", blocks,
                      left, error_unit::items);
  }
  std::size_t have = free_ready_ + free_pending_, groups = 0, counted = 0;
  for (std::uint32_t c = lowest_unwanted_; have < blocks && c < cells_.size(); ++c) {
    if (cells_[c].wanted) continue;
    have += blocks_of(c);
    const page_span pages = layout_.pages_of(first_block(c), blocks_of(c));
    // Neighbours share page groups.
    for (std::size_t g = std::max(pages.first, counted); g < pages.end(); ++g) {
      groups += needs_[g] == 0 ? 1 : 0;
    }
    counted = std::max(counted, pages.end());
  }
  if (groups == 0) return std::size_t{0};
  return missing_memory(store_->device(), *store_->pool(), groups * layout_.group_bytes());
}

// Whether a page group loses its last cell with this one.
bool block_arena::frees_memory(std::uint32_t c) const {
  const page_span pages = layout_.pages_of(first_block(c), blocks_of(c));
  for (std::size_t g = pages.first; g < pages.end(); ++g) {
    if (needs_[g] == 1) return true;
  }
  return false;
}

result<std::vector<block_move>> block_arena::compact(std::size_t most, stream_ref stream) {
  return with_host_memory("kv::block_arena::compact", [&]() -> result<std::vector<block_move>> {
    if (store_->suspended()) return suspended_error();
    const auto live = [&](std::uint32_t c) { return cells_[c].used + cells_[c].cached; };
    std::vector<std::uint32_t> partial;
    for (std::uint32_t c = 0; c < cells_.size(); ++c) {
      if (cells_[c].ready && live(c) != 0 && free_blocks_of(c) != 0) partial.push_back(c);
    }
    std::sort(partial.begin(), partial.end(),
              [&](std::uint32_t a, std::uint32_t b) { return live(a) < live(b); });
    std::size_t room = 0;
    for (const std::uint32_t c : partial) room += free_blocks_of(c);
    std::vector<block_move> moves;
    // Cells from the front are emptied into free blocks of those at the back.
    std::size_t back = partial.size();
    block_id to = 0, to_end = 0;
    const auto next_free = [&](std::size_t front) {
      for (;; ++to) {
        while (to == to_end) {
          if (--back == front) return false;
          to = first_block(partial[back]);
          to_end = first_block(partial[back] + 1);
        }
        if (references_[to] == 0) return true;
      }
    };
    for (std::size_t front = 0; front < back; ++front) {
      const std::uint32_t c = partial[front];
      room -= free_blocks_of(c);
      if (!frees_memory(c)) continue;  // its neighbours need the same page groups
      if (moves.size() + live(c) > most || room < live(c)) break;
      const std::size_t before = moves.size();
      bool fits = true;
      for (block_id b = first_block(c); fits && b < first_block(c + 1); ++b) {
        if (references_[b] == 0) continue;
        fits = next_free(front);
        if (fits) moves.push_back({b, to++});
      }
      if (!fits) {
        moves.resize(before);
        break;
      }
      room -= live(c);
    }
    STILLMAP_RETURN_IF_ERROR(copy(moves, stream));
    for (const block_move m : moves) {
      const bool kept = references_[m.from] == is_cached;
      references_[m.to] = std::exchange(references_[m.from], 0);
      change(cell_of(m.from), [&](cell &in) { --(kept ? in.cached : in.used); });
      change(cell_of(m.to), [&](cell &in) {
        ++(kept ? in.cached : in.used);
        const std::uint32_t used = cells_[cell_of(m.from)].last_use;
        if (clock_ - used < clock_ - in.last_use) in.last_use = used;
      });
    }
    stats_.moved_blocks += moves.size();
    return moves;
  });
}

// Neighbours that become neighbours are copied in one.
status block_arena::copy(std::span<const block_move> moves, stream_ref stream) const {
  if (moves.empty()) return {};
  const driver &drv = store_->device().driver();
  const context_guard guard(drv, store_->device().context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  for (std::size_t i = 0; i < moves.size();) {
    std::size_t n = 1;
    while (i + n < moves.size() && moves[i + n].from == moves[i].from + n &&
           moves[i + n].to == moves[i].to + n) {
      ++n;
    }
    for (std::uint32_t r = 0; r < layout_.ranges(); ++r) {
      const device_address at = store_->address(r, 0);
      const std::size_t stride = layout_.block_stride();
      STILLMAP_RETURN_IF_ERROR(drv.copy_on_device_async(
          at + moves[i].to * stride, at + moves[i].from * stride, n * stride, stream.get()));
    }
    i += n;
  }
  return {};
}

result<std::size_t> block_arena::trim() {
  const operation_scope scope("kv::block_arena::trim");
  if (store_->suspended()) return suspended_error();
  const status before = store_->finish();
  take_ready();
  if (!before && !before.error().is(errc::out_of_memory)) return tl::unexpected(before.error());
  for (std::uint32_t c = lists_.back(); c != none;) {
    const std::uint32_t next = cells_[c].next;
    take_memory(c);
    c = next;
  }
  return store_->settle();
}

// Cells without used blocks, the free ones first, then those that were used longest ago. Where neighbours share page
// groups, only cells with a group that none but cells of these needs.
std::vector<std::uint32_t> block_arena::cells_to_give(bool with_cached) const {
  std::vector<std::uint32_t> cells;
  std::vector<std::uint16_t> needed_by_these(needs_.size());
  const auto pages = [&](std::uint32_t c) {
    return layout_.pages_of(first_block(c), blocks_of(c));
  };
  for (std::uint32_t c = 0; c < cells_.size(); ++c) {
    if (!cells_[c].ready || cells_[c].used != 0 || (cells_[c].cached != 0 && !with_cached))
      continue;
    cells.push_back(c);
    for (std::size_t g = pages(c).first; g < pages(c).end(); ++g) ++needed_by_these[g];
  }
  std::erase_if(cells, [&](std::uint32_t c) {
    for (std::size_t g = pages(c).first; g < pages(c).end(); ++g) {
      if (needed_by_these[g] == needs_[g]) return false;
    }
    return true;
  });
  std::sort(cells.begin(), cells.end(), [&](std::uint32_t a, std::uint32_t b) {
    if ((cells_[a].cached == 0) != (cells_[b].cached == 0)) return cells_[a].cached == 0;
    return clock_ - cells_[a].last_use > clock_ - cells_[b].last_use;
  });
  return cells;
}

result<std::size_t> block_arena::give_back(std::size_t bytes, std::size_t keep,
                                           std::vector<block_id> *evicted) {
  return with_host_memory("kv::block_arena::give_back", [&]() -> result<std::size_t> {
    STILLMAP_RETURN_IF_ERROR(check_settled());
    const std::vector<std::uint32_t> cells = cells_to_give(evicted != nullptr);
    if (evicted != nullptr) evicted->reserve(evicted->size() + stats_.cached);
    const pool_release pool(*store_->pool(), bytes);
    STILLMAP_RETURN_IF_ERROR(pool.trim());
    std::size_t given_up = 0;
    for (const std::uint32_t c : cells) {
      if (given_up * layout_.group_bytes() >= pool.missing()) break;
      if (cells_[c].cached != 0) evict_cell(c, *evicted);
      // One that has to stay is free, so that the next one need not.
      if (free_ready_ - blocks_of(c) >= keep) given_up += take_memory(c);
    }
    if (given_up != 0) STILLMAP_RETURN_IF_ERROR(store_->settle());
    STILLMAP_RETURN_IF_ERROR(pool.trim());
    return pool.released();
  });
}

std::vector<cell_occupancy> block_arena::occupancy() const {
  std::vector<cell_occupancy> all(cells_.size());
  for (std::uint32_t c = 0; c < cells_.size(); ++c) {
    all[c] = {first_block(c), blocks_of(c), cells_[c].used, cells_[c].cached, cells_[c].ready};
  }
  return all;
}

std::vector<std::pair<block_id, std::uint32_t>> block_arena::committed_ranges() const {
  std::vector<std::pair<block_id, std::uint32_t>> all;
  for (std::uint32_t c = 0; c < cells_.size(); ++c) {
    if (!cells_[c].ready) continue;
    const block_id first = first_block(c);
    if (!all.empty() && all.back().first + all.back().second == first) {
      all.back().second += blocks_of(c);
    } else {
      all.emplace_back(first, blocks_of(c));
    }
  }
  return all;
}

block_arena_stats block_arena::stats() const {
  block_arena_stats now = stats_;
  now.free = free_ready_;
  now.mapped_bytes = store_->mapped_groups() * layout_.group_bytes();
  return now;
}

}  // namespace stillmap::kv
