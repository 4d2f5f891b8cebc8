// Lookup in the memory registry, and life cycle of physical memory.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <mutex>

#include "hostcuda/src/context.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/memory/vmm_props.h"

namespace hostcuda {

memory_registry &the_memory() {
  static memory_registry *const b = new memory_registry;
  return *b;
}

bool unbacked() {
  return !current_settings().backed;
}

namespace {

struct pin_book {
  struct range {
    std::uint64_t id;
    CUdeviceptr at;
    std::size_t bytes;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::list<range> ranges;
  std::uint64_t next = 1;

  bool overlaps(CUdeviceptr at, std::size_t bytes) const {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const range &r) { return r.at < at + bytes && at < r.at + r.bytes; });
  }
};

pin_book &pin_books() {
  static pin_book *const p = new pin_book;
  return *p;
}

bool allows(access_bits bits, CUdevice device, bool write) {
  const unsigned need = write ? 3U : 1U;
  return (access_of(bits, device) & need) == need;
}

// Calls visit(element, begin, bytes) for each element of `m` that overlaps [at, at + bytes), with the
// common range.
template <class Map, class Visit>
void each_overlapping(Map &m, CUdeviceptr at, std::size_t bytes, Visit visit) {
  const CUdeviceptr end = at + bytes;
  auto it = containing(m, at);
  if (it == m.end()) it = m.lower_bound(at);
  for (; it != m.end() && it->first < end; ++it) {
    const CUdeviceptr from = std::max(it->first, at);
    visit(*it, from, std::min<CUdeviceptr>(it->first + it->second.bytes, end) - from);
  }
}

// Bytes that all processes of the machine may use together: without what hostcuda_occupy takes here.
std::size_t limit_of_machine(int location) {
  const std::size_t all = current_settings().machine.device_memory;
  return all - std::min(all, the_memory().occupied[location]);
}

bool charge(int location, std::size_t bytes) {
  memory_registry &b = the_memory();
  const profile &machine = current_settings().machine;
  if (location != kHostLocation) {
    const std::size_t taken = b.used[location] + b.occupied[location];
    if (taken > machine.device_memory || bytes > machine.device_memory - taken) return false;
    if (in_machine() && !charge_machine(location, bytes, limit_of_machine(location))) return false;
  }
  b.used[location] += bytes;
  std::size_t sum = 0;
  for (int i = 0; i < machine.device_count; ++i) sum += b.used[i];
  b.peak = std::max(b.peak, sum);
  return true;
}

CUresult take_own_file(const CUmemAllocationProp &shared, std::size_t bytes, physical *p) {
  p->own_file = true;
  p->where.fd = make_shared_pages(share_name(shared).c_str(), bytes);
  if (p->where.fd < 0)
    return errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
  mode_t mode = 0;
  // If this fails, the name still has the properties.
  if (share_mode(shared, &mode)) (void)fchmod(p->where.fd, mode);
  struct stat st {};
  fstat(p->where.fd, &st);
  p->file_id = {st.st_dev, st.st_ino};
  return CUDA_SUCCESS;
}

// Whether nothing of the host is given back with it.
bool has_no_pages(const physical &p) {
  return p.where.fd < 0 && !p.own_file && p.pool == nullptr;
}

void uncharge(int location, std::size_t bytes) {
  the_memory().used[location] -= bytes;
  if (in_machine() && location != kHostLocation) uncharge_machine(location, bytes);
}

void delete_locked(physical *p) {
  if (p->key.file != 0) {
    const std::size_t own = p->counted ? p->where.bytes : 0;
    the_memory().used[p->location] -= own;
    drop_in_machine(p->key, p->location, own);
  } else if (p->counted) {
    uncharge(p->location, p->where.bytes);
  }
  delete p;
}

CUresult key_of(const physical &p, shared_key *out) {
  if (p.own_file) {
    *out = {p.file_id.second, 0};
    return CUDA_SUCCESS;
  }
  struct stat st {};
  if (p.where.fd >= 0 && fstat(p.where.fd, &st) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *out = {p.where.fd >= 0 ? st.st_ino : file_of_unbacked(getpid()), p.id};
  return CUDA_SUCCESS;
}

}  // namespace

CUresult create_physical(exclusive &lock, int location, std::size_t bytes,
                         const CUmemAllocationProp *shared, physical **out,
                         const std::shared_ptr<pool_file> &pool) {
  if (!charge(location, bytes)) {
    // As the driver does: release the unused memory of pools first.
    lock.unlock();
    trim_every_pool(location);
    lock.lock();
    if (!charge(location, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto p = std::make_unique<physical>();
  p->location = location;
  p->where.bytes = bytes;
  p->pool = pool;
  p->refs = 1;
  if (shared != nullptr || pool != nullptr || !unbacked()) {
    lock.unlock();
    CUresult r = CUDA_SUCCESS;
    if (shared != nullptr) {
      r = take_own_file(*shared, bytes, p.get());
    } else if (!(pool != nullptr ? pool->take(bytes, &p->where)
                                 : pages_of(location).take(bytes, &p->where))) {
      r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    lock.lock();
    if (r != CUDA_SUCCESS) {
      uncharge(location, bytes);
      return r;
    }
  }
  p->id = the_memory().next_id++;
  if (p->own_file) the_memory().shared_files[p->file_id] = p.get();
  *out = p.release();
  return CUDA_SUCCESS;
}

CUresult share_physical_locked(physical *memory) {
  if (!in_machine() || memory->location == kHostLocation || memory->key.file != 0)
    return CUDA_SUCCESS;
  shared_key key;
  if (const CUresult r = key_of(*memory, &key); r != CUDA_SUCCESS) return r;
  if (!share_in_machine({key, memory->where.bytes}, memory->location))
    return CUDA_ERROR_OUT_OF_MEMORY;
  memory->key = key;
  return CUDA_SUCCESS;
}

bool hold_physical_locked(physical *memory, const shared_piece &whole) {
  if (!in_machine() || memory->location == kHostLocation || whole.key.file == 0) return true;
  if (!hold_in_machine(whole, memory->location, limit_of_machine(memory->location))) return false;
  memory->key = whole.key;
  return true;
}

physical *import_physical_locked(int location, const extent &where, const shared_piece &whole,
                                 std::shared_ptr<pool_file> file) {
  auto p = std::make_unique<physical>();
  p->id = the_memory().next_id++;
  p->location = location;
  p->where = where;
  p->pool = std::move(file);
  p->counted = false;  // the exporter is charged
  p->refs = 1;
  return hold_physical_locked(p.get(), whole) ? p.release() : nullptr;
}

void drop_locked(physical *memory, dead_memory *dead) {
  if (--memory->refs != 0) return;
  if (memory->own_file) the_memory().shared_files.erase(memory->file_id);
  if (memory->vmm) --the_memory().vmm_allocations;
  if (has_no_pages(*memory)) {
    delete_locked(memory);
  } else {
    dead->add(memory);
  }
}

dead_memory::~dead_memory() {
  if (list_.empty()) return;
  // Releases adjacent extents in one call.
  extent run;
  int run_location = -1;
  for (physical *p : list_) {
    if (p->own_file) {
      drop_shared_pages(p->where.fd, p->where.view, p->where.bytes);
    } else if (p->pool != nullptr) {
      if (p->counted) p->pool->give(p->where);  // the pages of imported memory are the exporter's
    } else if (run_location == p->location && run.fd == p->where.fd && run.fd >= 0 &&
               run.offset + run.bytes == p->where.offset) {
      run.bytes += p->where.bytes;
    } else {
      if (run_location >= 0) pages_of(run_location).give(run);
      run = p->where;
      run_location = p->location;
    }
  }
  if (run_location >= 0) pages_of(run_location).give(run);
  exclusive lock(the_memory().mutex);
  for (physical *p : list_) delete_locked(p);
}

bool known_locked(CUdeviceptr at) {
  memory_registry &b = the_memory();
  return containing(b.reservations, at) != b.reservations.end() ||
         containing(b.blocks, at) != b.blocks.end() || containing(b.host, at) != b.host.end() ||
         containing(b.chunks, at) != b.chunks.end();
}

void *resolve_locked(CUdevice device, CUdeviceptr at, std::size_t bytes, bool write,
                     peer_rule rule) {
  memory_registry &b = the_memory();
  if (bytes == 0) bytes = 1;
  if (at + bytes < at) return nullptr;
  const CUdeviceptr end = at + bytes;
  if (auto it = containing(b.mappings, at); it != b.mappings.end()) {
    for (CUdeviceptr reached = it->first;; ++it) {
      if (it == b.mappings.end() || it->first != reached) return nullptr;
      if (!allows(it->second.access, device, write)) return nullptr;
      reached += it->second.bytes;
      if (reached >= end) return as_pointer(at);
    }
  }
  // Work that precedes a queued free may still access the bytes, even if a new block is there.
  if (freed_but_not_yet(at, bytes)) {
    const arena *const a = containing(b.chunks, at)->second.owner;
    if (allows(pool_access(a->pool), device, write)) return as_pointer(at);
  }
  if (auto it = containing(b.blocks, at); it != b.blocks.end()) {
    const block &k = it->second;
    if (end > it->first + k.bytes) return nullptr;
    // Unlike cuMemAlloc memory, a pool's is accessible only where cuMemPoolSetAccess says so.
    if (k.pool != nullptr)
      return allows(pool_access(k.pool), device, write) ? as_pointer(at) : nullptr;
    const bool near = k.location == device || (k.imported && k.ctx->device == device);
    if (k.owner == nullptr || near || rule == peer_rule::copies) return as_pointer(at);
    return peer_enabled(device, k.location) ? as_pointer(at) : nullptr;
  }
  if (auto it = containing(b.host, at); it != b.host.end())
    return end <= it->first + it->second.bytes ? as_pointer(at) : nullptr;
  return nullptr;
}

void *resolve(CUdevice device, CUdeviceptr at, std::size_t bytes, bool write) {
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  return resolve_locked(device, at, bytes, write, peer_rule::strict);
}

std::vector<physical_piece> pieces(CUdeviceptr at, std::size_t bytes) {
  std::vector<physical_piece> out;
  if (bytes == 0) return out;
  memory_registry &b = the_memory();
  std::shared_lock<std::shared_mutex> lock(b.mutex);
  each_overlapping(b.mappings, at, bytes, [&](const auto &m, CUdeviceptr from, std::size_t size) {
    out.push_back({m.second.handle->memory->id, from - m.first, size});
  });
  if (!out.empty()) return out;  // allocations and reservations never overlap
  each_overlapping(b.chunks, at, bytes, [&](const auto &c, CUdeviceptr from, std::size_t size) {
    out.push_back({c.second.memory->id, from - c.first, size});
  });
  return out;
}

void note_mapped_locked(physical *memory, CUdeviceptr at) {
  memory->mapped_at.add(at);
  if (memory->mapped_at.size() == 2) ++the_memory().aliased;
}

void note_unmapped_locked(physical *memory, CUdeviceptr at) {
  if (memory->mapped_at.size() == 2) --the_memory().aliased;
  memory->mapped_at.remove(at);
}

std::vector<virtual_range> aliases(CUdeviceptr at, std::size_t bytes) {
  std::vector<virtual_range> out;
  memory_registry &b = the_memory();
  if (b.aliased.load(std::memory_order_acquire) == 0) return out;
  std::shared_lock<std::shared_mutex> lock(b.mutex);
  each_overlapping(b.mappings, at, bytes, [&](const auto &m, CUdeviceptr from, std::size_t size) {
    m.second.handle->memory->mapped_at.each([&](CUdeviceptr other) {
      if (other != m.first) out.push_back({other + (from - m.first), size});
    });
  });
  return out;
}

namespace {

// Returns the view of the memory, or nullptr. The view of memory with its own file is created on
// first use, so that a process that only exports the memory does not pay for it.
char *view_of(physical &p) {
  if (p.own_file)
    std::call_once(p.viewed, [&] { p.where.view = map_view(p.where.fd, p.where.bytes); });
  return p.where.view;
}

// Finds the bytes of mapped pages in the views. Does not check access rights. Requires the lock.
void find_bytes_locked(pinned_access &a) {
  memory_registry &b = the_memory();
  auto m = containing(b.mappings, a.at);
  if (m == b.mappings.end()) return;
  std::vector<host_bytes> &found = a.pieces;
  host_bytes run{nullptr, 0};
  for (CUdeviceptr at = a.at, end = a.at + a.bytes; at < end; ++m) {
    char *const view = view_of(*m->second.handle->memory);
    if (view == nullptr) return found.clear();
    char *const here = view + (at - m->first);
    const std::size_t bytes = std::min<std::size_t>(end, m->first + m->second.bytes) - at;
    if (run.bytes != 0 && run.at + run.bytes == here) {
      run.bytes += bytes;
    } else {
      if (run.bytes != 0) found.push_back(run);
      run = {here, bytes};
    }
    at += bytes;
  }
  if (found.empty()) {
    a.host = run.at;
  } else {
    found.push_back(run);
  }
}

}  // namespace

const void *resolve_for_reading(CUdevice device, CUdeviceptr at, std::size_t bytes) {
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  pinned_access a;
  a.at = at;
  a.bytes = bytes;
  a.host = static_cast<char *>(resolve_locked(device, at, bytes, false, peer_rule::strict));
  if (a.host != nullptr && !unbacked()) find_bytes_locked(a);
  return a.host;  // the device address if the view is not contiguous
}

pin_guard::~pin_guard() {
  if (pins_.empty()) return;
  pin_book &p = pin_books();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.ranges.remove_if([this](const pin_book::range &r) {
    return std::find(pins_.begin(), pins_.end(), r.id) != pins_.end();
  });
  p.changed.notify_all();
}

bool pin_guard::take(pinned_access *list, std::size_t count) {
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  for (std::size_t i = 0; i < count; ++i) {
    pinned_access &a = list[i];
    void *at = resolve_locked(a.device, a.at, a.bytes, a.write, peer_rule::copies);
    if (at == nullptr && a.maybe_host && !known_locked(a.at)) at = as_pointer(a.at);
    if (at == nullptr) return false;
    a.host = static_cast<char *>(at);
    if (!unbacked()) find_bytes_locked(a);
  }
  pin_book &p = pin_books();
  std::lock_guard<std::mutex> pin_lock(p.mutex);
  for (std::size_t i = 0; i < count; ++i) {
    pins_.push_back(p.next);
    p.ranges.push_back({p.next++, list[i].at, list[i].bytes});
  }
  return true;
}

bool wait_for_pins(std::unique_lock<std::shared_mutex> &lock, CUdeviceptr at, std::size_t bytes) {
  pin_book &p = pin_books();
  {
    std::unique_lock<std::mutex> pin_lock(p.mutex);
    if (!p.overlaps(at, bytes)) return false;
    lock.unlock();
    p.changed.wait(pin_lock, [&] { return !p.overlaps(at, bytes); });
  }
  lock.lock();
  return true;
}

CUresult occupy(CUdevice device, std::size_t bytes) {
  exclusive lock(the_memory().mutex);
  the_memory().occupied[device] = bytes;
  return CUDA_SUCCESS;
}

}  // namespace hostcuda
