#include "hostcuda/src/memory/arena.h"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "hostcuda/src/memory/ipc_registry.h"

namespace hostcuda {
namespace {

constexpr std::size_t kAlignment = 512;

void add_free(arena *a, CUdeviceptr at, std::size_t bytes) {
  a->free_at.emplace(at, bytes);
  a->free_by_size.emplace(bytes, at);
}

void remove_free(arena *a, std::map<CUdeviceptr, std::size_t>::iterator it) {
  a->free_by_size.erase({it->second, it->first});
  a->free_at.erase(it);
}

// Creates and maps memory that is not registered yet.
CUresult make_chunk(const arena *a, std::size_t bytes, physical **memory, void **at) {
  {
    exclusive lock(the_memory().mutex);
    if (CUresult r = create_physical(lock, a->location, bytes, nullptr, memory, a->file);
        r != CUDA_SUCCESS)
      return r;
  }
  *at = reserve_range(bytes, kGranularity, nullptr);
  if (*at == nullptr || !may_map_extent() || !map_extent(*at, (*memory)->where, 3)) {
    if (*at != nullptr) release_range(*at, bytes);
    dead_memory dead;
    exclusive lock(the_memory().mutex);
    drop_locked(*memory, &dead);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  populate_range(*at, bytes);
  return CUDA_SUCCESS;
}

void enter_chunk_locked(arena *a, std::size_t bytes, physical *memory, void *at) {
  const auto start = address_of(at);
  the_memory().chunks.emplace(start, chunk{bytes, memory, a, 0});
  a->chunks.insert(start);
  a->reserved += bytes;
  a->reserved_high = std::max(a->reserved_high, a->reserved);
  add_free(a, start, bytes);
}

void enter_block_locked(arena *a, CUdeviceptr at, std::size_t footprint, const block &proto,
                        std::size_t bytes) {
  memory_registry &b = the_memory();
  block k = proto;
  k.bytes = bytes;
  k.footprint = footprint;
  k.owner = a;
  k.location = a->location;
  k.id = b.next_id++;
  b.blocks.emplace(at, k);
  ++containing(b.chunks, at)->second.live;
  a->used += footprint;
  a->used_high = std::max(a->used_high, a->used);
}

void add_parked(parked_line &line, CUdeviceptr at, const parked_piece &p) {
  line.at.emplace(at, p);
  line.by_size.emplace(p.bytes, at);
  line.by_tick.emplace(p.tick, at);
}

parked_piece remove_parked(parked_line &line, CUdeviceptr at) {
  const auto it = line.at.find(at);
  const parked_piece p = it->second;
  line.by_size.erase({p.bytes, at});
  line.by_tick.erase({p.tick, at});
  line.at.erase(it);
  return p;
}

// The best fit among the free and parked ranges that a stream may use.
struct candidate {
  std::size_t bytes = static_cast<std::size_t>(-1);
  CUdeviceptr at = 0;
  parked_line *line = nullptr;  // nullptr: a free range
};

void look_among(parked_line &line, std::size_t footprint, std::uint64_t until, candidate *best) {
  int tries = 16;  // nearly all ranges are as old as the first
  for (auto it = line.by_size.lower_bound({footprint, 0});
       it != line.by_size.end() && it->first < best->bytes && --tries > 0; ++it) {
    if (line.at.find(it->second)->second.tick > until) continue;
    *best = {it->first, it->second, &line};
    return;
  }
}

bool take_piece(arena *a, std::size_t footprint, const stream_order *order, bool follows,
                CUdeviceptr *out) {
  candidate best;
  if (const auto fit = a->free_by_size.lower_bound({footprint, 0}); fit != a->free_by_size.end())
    best = {fit->first, fit->second, nullptr};
  if (order != nullptr && !order->capturing) {
    if (const auto own = a->parked.find(order->line); own != a->parked.end())
      look_among(own->second, footprint, static_cast<std::uint64_t>(-1), &best);
    for (const place_in_time &p : order->after) {
      const auto line = a->parked.find(p.line);
      if (follows && line != a->parked.end()) look_among(line->second, footprint, p.tick, &best);
    }
  }
  if (best.at == 0) return false;
  if (best.line == nullptr) {
    remove_free(a, a->free_at.find(best.at));
    if (best.bytes > footprint) add_free(a, best.at + footprint, best.bytes - footprint);
  } else {
    const parked_piece p = remove_parked(*best.line, best.at);
    if (p.bytes > footprint)
      add_parked(*best.line, best.at + footprint, {p.bytes - footprint, p.tick});
  }
  *out = best.at;
  return true;
}

// Adds a parked range to a stream and merges it with adjacent parked ranges.
void join_parked(parked_line &line, CUdeviceptr at, parked_piece p, const chunk &home,
                 CUdeviceptr home_at) {
  if (const auto next = line.at.find(at + p.bytes);
      next != line.at.end() && next->first < home_at + home.bytes) {
    const parked_piece other = remove_parked(line, next->first);
    p = {p.bytes + other.bytes, std::max(p.tick, other.tick)};
  }
  if (auto before = line.at.lower_bound(at); before != line.at.begin()) {
    --before;
    if (before->first + before->second.bytes == at && before->first >= home_at) {
      at = before->first;
      const parked_piece other = remove_parked(line, at);
      p = {p.bytes + other.bytes, std::max(p.tick, other.tick)};
    }
  }
  add_parked(line, at, p);
}

// Merges free bytes adjacent to a parked range into it. The sum may be large enough for a block,
// and the addresses that a stream gets do not depend on its progress. Other streams can use the
// bytes again when the parked range is free. `at` is any address in the range. Returns whether the
// range has grown.
bool absorb_beside(arena *a, parked_line &line, CUdeviceptr at) {
  const auto home = containing(the_memory().chunks, at);
  const CUdeviceptr home_end = home->first + home->second.bytes;
  bool any = false;
  for (const bool above : {true, false}) {
    const auto piece = std::prev(line.at.upper_bound(at));
    const CUdeviceptr begin = piece->first, end = begin + piece->second.bytes;
    const std::uint64_t tick = piece->second.tick;
    auto beside = a->free_at.lower_bound(above ? end : begin);
    if (above) {
      if (beside == a->free_at.end() || beside->first != end || end == home_end) continue;
    } else {
      if (beside == a->free_at.begin()) continue;
      --beside;
      if (beside->first < home->first || beside->first + beside->second != begin) continue;
    }
    const CUdeviceptr start = beside->first;
    const std::size_t bytes = beside->second;
    remove_free(a, beside);
    join_parked(line, start, {bytes, tick}, home->second, home->first);
    any = true;
  }
  return any;
}

// As absorb_beside(), for all parked ranges of a stream.
bool absorb_neighbours(arena *a, std::uint64_t line_id) {
  const auto found = a->parked.find(line_id);
  if (found == a->parked.end()) return false;
  std::vector<CUdeviceptr> pieces;
  for (const auto &[at, p] : found->second.at) pieces.push_back(at);
  bool any = false;
  for (const CUdeviceptr at : pieces) any = absorb_beside(a, found->second, at) || any;
  return any;
}

bool carve_locked(arena *a, std::size_t footprint, const block &proto, std::size_t bytes,
                  CUdeviceptr *out, const stream_order *order, bool follows) {
  CUdeviceptr at = 0;
  if (!take_piece(a, footprint, order, follows, &at)) {
    if (order == nullptr || order->capturing || !absorb_neighbours(a, order->line)) return false;
    if (!take_piece(a, footprint, order, follows, &at)) return false;
  }
  enter_block_locked(a, at, footprint, proto, bytes);
  *out = at;
  return true;
}

void remove_chunk(std::map<CUdeviceptr, chunk>::iterator it, dead_memory *dead) {
  arena *a = it->second.owner;
  remove_free(a, a->free_at.find(it->first));  // an empty chunk is one free range
  a->chunks.erase(it->first);
  a->reserved -= it->second.bytes;
  release_range(as_pointer(it->first), it->second.bytes);
  drop_locked(it->second.memory, dead);
  the_memory().chunks.erase(it);
}

}  // namespace

CUresult arena_allocate(arena *a, std::size_t bytes, const block &proto, CUdeviceptr *out,
                        const stream_order *order, bool follows) {
  if (bytes > (std::size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t footprint = round_up(bytes, kAlignment);
  const auto carve = [&] { return carve_locked(a, footprint, proto, bytes, out, order, follows); };
  const std::size_t room = round_up(footprint, kGranularity);
  {
    dead_memory dead;
    exclusive lock(the_memory().mutex);
    if (carve()) return CUDA_SUCCESS;
    const auto full = [&] {
      return a->limit != 0 && (room > a->limit || a->reserved + a->growing > a->limit - room);
    };
    if (full()) arena_trim_locked(a, 0, &dead);  // empty chunks that are too small
    if (full()) return CUDA_ERROR_OUT_OF_MEMORY;
    a->growing += room;
  }
  physical *memory = nullptr;
  void *at = nullptr;
  const CUresult r = make_chunk(a, room, &memory, &at);
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  a->growing -= room;
  if (r != CUDA_SUCCESS) return r;
  // Another thread may have freed a block in the meantime. A chunk that never has a block would
  // not be released, because chunks are released with their last block.
  if (carve()) {
    release_range(at, room);
    drop_locked(memory, &dead);
  } else {
    enter_chunk_locked(a, room, memory, at);
    carve();
  }
  return CUDA_SUCCESS;
}

CUdeviceptr arena_adopt_locked(arena *a, physical *memory, void *at, std::size_t offset,
                               std::size_t bytes, const block &proto) {
  const std::size_t footprint = round_up(bytes, kAlignment);
  const std::size_t all = memory->where.bytes;
  enter_chunk_locked(a, all, memory, at);
  const CUdeviceptr start = address_of(at);
  remove_free(a, a->free_at.find(start));
  if (offset != 0) add_free(a, start, offset);
  if (offset + footprint != all) add_free(a, start + offset + footprint, all - offset - footprint);
  enter_block_locked(a, start + offset, footprint, proto, bytes);
  return start + offset;
}

namespace {

// Adds a free range and merges it with adjacent free ranges of its chunk.
void free_bytes(arena *a, CUdeviceptr at, std::size_t bytes, const chunk &home,
                CUdeviceptr home_at) {
  const CUdeviceptr home_end = home_at + home.bytes;
  if (const auto next = a->free_at.find(at + bytes);
      next != a->free_at.end() && next->first < home_end) {
    bytes += next->second;
    remove_free(a, next);
  }
  if (auto before = a->free_at.lower_bound(at); before != a->free_at.begin()) {
    --before;
    if (before->first + before->second == at && before->first >= home_at) {
      at = before->first;
      bytes += before->second;
      remove_free(a, before);
    }
  }
  add_free(a, at, bytes);
}

void leave_chunk(std::map<CUdeviceptr, chunk>::iterator home, dead_memory *dead) {
  if (--home->second.live != 0) return;
  if (home->second.owner->keeps_empty) {
    pool_has_an_empty_chunk();
  } else {
    remove_chunk(home, dead);
  }
}

// Parked blocks with a queued free that has not run.
struct parked_registry {
  struct block_parked {
    arena *owner;
    memory_pool *pool;
    CUdeviceptr at;
    std::size_t bytes;
    place_in_time place;
  };
  std::unordered_map<std::uint64_t, block_parked> by_id;
  // Number of parked blocks over each byte, constant from each key to the next.
  std::map<CUdeviceptr, int> depth;

  void add(CUdeviceptr at, std::size_t bytes, int how_many) {
    const auto first = boundary(at), last = boundary(at + bytes);
    for (auto it = first; it != last; ++it) it->second += how_many;
    unite(at + bytes);
    for (auto it = depth.find(at); it != depth.end() && it->first < at + bytes;) {
      const CUdeviceptr next = std::next(it) == depth.end() ? 0 : std::next(it)->first;
      unite(it->first);
      if (next == 0) break;
      it = depth.find(next);
    }
  }
  int over(CUdeviceptr at) const {
    auto it = depth.upper_bound(at);
    return it == depth.begin() ? 0 : std::prev(it)->second;
  }

 private:
  std::map<CUdeviceptr, int>::iterator boundary(CUdeviceptr at) {
    return depth.emplace(at, over(at)).first;
  }
  // Removes a boundary between equal depths.
  void unite(CUdeviceptr at) {
    const auto it = depth.find(at);
    if (it == depth.end()) return;
    const int before = it == depth.begin() ? 0 : std::prev(it)->second;
    if (before == it->second) depth.erase(it);
  }
};

parked_registry &parked() {
  static parked_registry *const p = new parked_registry;
  return *p;
}

}  // namespace

void arena_free_locked(std::map<CUdeviceptr, block>::iterator it, dead_memory *dead) {
  memory_registry &b = the_memory();
  arena *a = it->second.owner;
  const CUdeviceptr at = it->first;
  const std::size_t bytes = it->second.footprint;
  const auto home = containing(b.chunks, at);
  if (it->second.exported || it->second.imported) forget_shared_locked(at, it->second);
  b.blocks.erase(it);
  a->used -= bytes;
  free_bytes(a, at, bytes, home->second, home->first);
  leave_chunk(home, dead);
}

void arena_park_locked(std::map<CUdeviceptr, block>::iterator it, const place_in_time &place) {
  memory_registry &b = the_memory();
  arena *a = it->second.owner;
  const CUdeviceptr at = it->first;
  const std::size_t bytes = it->second.footprint;
  parked().by_id.emplace(it->second.id,
                         parked_registry::block_parked{a, it->second.pool, at, bytes, place});
  parked().add(at, bytes, 1);
  b.blocks.erase(it);
  a->used -= bytes;
  ++a->frees_queued;
  // The chunk counts the block until its free has run.
  const auto home = containing(b.chunks, at);
  parked_line &line = a->parked[place.line];
  join_parked(line, at, {bytes, place.tick}, home->second, home->first);
  absorb_beside(a, line, at);
}

bool arena_is_parked_locked(std::uint64_t block_id) {
  return parked().by_id.contains(block_id);
}

bool arena_unpark_locked(std::uint64_t block_id, dead_memory *dead, memory_pool **pool) {
  const auto found = parked().by_id.find(block_id);
  if (found == parked().by_id.end()) return false;
  const parked_registry::block_parked k = found->second;
  parked().by_id.erase(found);
  parked().add(k.at, k.bytes, -1);
  *pool = k.pool;
  arena *a = k.owner;
  --a->frees_queued;
  if (const auto line = a->parked.find(k.place.line); line != a->parked.end()) {
    parked_line &of = line->second;
    while (!of.by_tick.empty() && of.by_tick.begin()->first <= k.place.tick) {
      const CUdeviceptr at = of.by_tick.begin()->second;
      const parked_piece p = remove_parked(of, at);
      const auto home = containing(the_memory().chunks, at);
      free_bytes(a, at, p.bytes, home->second, home->first);
    }
    if (of.at.empty()) a->parked.erase(line);
  }
  leave_chunk(containing(the_memory().chunks, k.at), dead);
  return true;
}

bool freed_but_not_yet(CUdeviceptr at, std::size_t bytes) {
  const auto &depth = parked().depth;
  if (depth.empty() || parked().over(at) == 0) return false;
  for (auto it = depth.upper_bound(at); it != depth.end() && it->first < at + bytes; ++it)
    if (it->second == 0) return false;
  return true;
}

void forget_parked() {
  parked() = parked_registry{};
}

void arena_trim_locked(arena *a, std::size_t keep, dead_memory *dead) {
  memory_registry &b = the_memory();
  for (auto it = a->chunks.begin(); it != a->chunks.end() && a->reserved > keep;) {
    const auto c = b.chunks.find(*it++);
    if (c->second.live == 0) remove_chunk(c, dead);
  }
}

}  // namespace hostcuda
