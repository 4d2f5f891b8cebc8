// Memory registry: all reservations, physical allocations, mappings and allocated blocks.
//
// Lock order: the_memory().mutex > context_table::mutex > page_file::mutex_. the_memory().mutex is
// not held during calls of the execution side, nor while pages are zeroed or released.
// hostcuda/docs/memory.md
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory.h"
#include "hostcuda/src/memory/address_list.h"
#include "hostcuda/src/memory/handle_table.h"
#include "hostcuda/src/memory/host_pages.h"
#include "hostcuda/src/memory/storage_pool.h"
#include "hostcuda/src/shared_machine.h"

namespace hostcuda {

constexpr int kHostLocation = kMaxDevices;  // location of host memory, next to the device ordinals

// Access rights: CUmemAccess_flags in two bits per location.
using access_bits = std::uint64_t;
inline unsigned access_of(access_bits bits, int location) {
  return static_cast<unsigned>(bits >> (2 * location)) & 3U;
}
inline access_bits with_access(access_bits bits, int location, unsigned access) {
  return (bits & ~(access_bits{3} << (2 * location))) | (access_bits{access} << (2 * location));
}

// Physical memory of a device, for all kinds of allocation. Lives until `refs` is 0.
struct physical {
  // Both require the registry's lock.
  static void *operator new(std::size_t) { return storage_pool<physical>::take(); }
  static void operator delete(void *at) { storage_pool<physical>::give(at); }

  std::uint64_t id = 0;
  int location = 0;
  extent where;
  bool own_file = false;            // where.fd belongs to this memory alone, for sharing
  std::shared_ptr<pool_file> pool;  // memory of a shareable pool: where.fd belongs to this file
  bool counted = true;  // counts as used memory of the device; false for imported memory
  shared_key key;       // of a machine with several processes: what other processes may hold
  bool vmm = false;     // created by cuMemCreate or imported
  std::uint64_t refs = 0;
  std::pair<std::uint64_t, std::uint64_t> file_id{};  // device and inode, if own_file
  address_list mapped_at;
  std::once_flag viewed;  // if own_file: `where.view` has been created
};

struct reservation {
  std::size_t bytes = 0;
  std::size_t mapped = 0;
};

struct mapping {
  std::size_t bytes = 0;
  vmm_handle *handle = nullptr;
  access_bits access = 0;
  bool present = false;  // mapped in the process; set when access is first granted
};

using mapping_map = std::map<CUdeviceptr, mapping, std::less<>,
                             pool_allocator<std::pair<const CUdeviceptr, mapping>>>;

struct arena;
struct memory_pool;

// One chunk of an arena: permanently mapped device memory in multiples of 2 MiB.
struct chunk {
  std::size_t bytes = 0;
  physical *memory = nullptr;
  arena *owner = nullptr;
  std::size_t live = 0;  // number of blocks in it
};

// Memory of an allocation node of a graph (graph_memory.h). orphan: allocated, without a graph.
enum class graph_block : unsigned char { no, reserved, allocated, orphan };

// A block allocated by cuMemAlloc, a pool or cuMemAllocManaged.
struct block {
  std::size_t bytes = 0;
  std::size_t footprint = 0;  // bytes after rounding
  arena *owner = nullptr;     // nullptr: managed
  context *ctx = nullptr;     // nullptr: from a pool
  memory_pool *pool = nullptr;
  int location = 0;
  std::uint64_t id = 0;
  bool freeing = false;   // a cuMemFreeAsync is queued
  bool exported = false;  // another process may open it by legacy IPC (ipc.h)
  bool imported = false;  // opened by legacy IPC: only cuIpcCloseMemHandle removes it
  bool owned = false;     // of a CUDA array or a variable of GPU code: only its end removes it
  graph_block graph = graph_block::no;
};

// Host memory from cuMemHostAlloc or cuMemHostRegister.
struct host_range {
  std::size_t bytes = 0;
  unsigned flags = 0;
  bool registered = false;  // memory of the program (cuMemHostRegister)
  context *ctx = nullptr;
  std::uint64_t id = 0;
};

struct memory_registry {
  std::shared_mutex mutex;
  std::map<CUdeviceptr, reservation> reservations;
  mapping_map mappings;
  mapping_map::iterator newest_mapping = mappings.end();
  std::map<CUdeviceptr, chunk> chunks;
  std::map<CUdeviceptr, block> blocks;
  std::map<CUdeviceptr, host_range> host;
  handle_table handles;
  std::map<std::pair<std::uint64_t, std::uint64_t>, physical *> shared_files;
  std::size_t used[kMaxDevices + 1] = {};
  std::size_t occupied[kMaxDevices + 1] = {};
  std::size_t peak = 0;
  std::uint64_t vmm_allocations = 0;
  std::uint64_t accessible_mappings = 0;
  std::atomic<std::uint64_t> aliased{0};  // number of physical allocations mapped more than once
  std::atomic<std::uint64_t> next_id{1};
};

memory_registry &the_memory();

using exclusive = std::unique_lock<std::shared_mutex>;

inline void *as_pointer(CUdeviceptr at) {
  return reinterpret_cast<void *>(at);
}
inline CUdeviceptr address_of(const void *p) {
  return reinterpret_cast<CUdeviceptr>(p);
}
inline CUdeviceptr address_of(CUdeviceptr at) {
  return at;
}

// ---- Physical memory ----

// Creates zeroed memory of `bytes` at a location, with one reference. Requires the lock, and releases it
// while the host provides pages.
// Errors: OUT_OF_MEMORY when the device or the host is full.
CUresult create_physical(exclusive &lock, int location, std::size_t bytes,
                         const CUmemAllocationProp *shared, physical **out,
                         const std::shared_ptr<pool_file> &pool = nullptr);

// The record of a part (`where`) of memory that another process created, with one reference. nullptr if
// the machine's processes leave no room for it, which they do while one of them holds the memory.
physical *import_physical_locked(int location, const extent &where, const shared_piece &whole,
                                 std::shared_ptr<pool_file> file);

// Called before other processes may import the memory: the machine counts it once for all of them from
// now on. Requires the lock.
// Errors: OUT_OF_MEMORY, OPERATING_SYSTEM.
CUresult share_physical_locked(physical *memory);
// The same for an importer. Returns false if there is no room. Requires the lock.
bool hold_physical_locked(physical *memory, const shared_piece &whole);
// Stands for the file in the key of a process's memory that has no bytes.
inline std::uint64_t file_of_unbacked(int process) {
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(process);
}

// Physical memory without references. The destructor releases it to the device and the host, and
// requires that the lock is not held: declare the object before the lock.
class dead_memory {
 public:
  dead_memory() = default;
  dead_memory(const dead_memory &) = delete;
  ~dead_memory();
  void add(physical *memory) { list_.push_back(memory); }

 private:
  std::vector<physical *> list_;
};

// Drops one reference. Adds the memory to `dead` when none is left. Requires the lock.
void drop_locked(physical *memory, dead_memory *dead);

// Add and remove an address at which memory is mapped. Require the lock.
void note_mapped_locked(physical *memory, CUdeviceptr at);
void note_unmapped_locked(physical *memory, CUdeviceptr at);

// ---- Lookup. All functions require the lock. ----

// The first element of `m` that starts at or after `at`. Fast at the upper end, where a growing
// program works.
template <class Map>
typename Map::iterator first_from(Map &m, CUdeviceptr at) {
  if (m.empty() || std::prev(m.end())->first < at) return m.end();
  if (const auto last = std::prev(m.end()); last->first == at) return last;
  return m.lower_bound(at);
}

// The element of `m` with `at` in [start, start + bytes), or end().
template <class Map>
typename Map::iterator containing(Map &m, CUdeviceptr at) {
  if (m.empty()) return m.end();
  auto it = std::prev(m.end());
  if (at < it->first) {
    it = m.upper_bound(at);
    if (it == m.begin()) return m.end();
    --it;
  }
  return at - it->first < it->second.bytes ? it : m.end();
}

enum class peer_rule { strict, copies };  // copies: cuMemAlloc memory of all devices is accessible

// As resolve(). Requires the lock.
void *resolve_locked(CUdevice device, CUdeviceptr at, std::size_t bytes, bool write,
                     peer_rule rule);

// Whether the registry has an entry at this address: mapped, reserved, allocated or host memory.
bool known_locked(CUdeviceptr at);

// ---- Pins: ranges in use by a running copy. Unmap and free wait until they are unpinned. ----

struct host_bytes {
  char *at;
  std::size_t bytes;
};

struct pinned_access {
  CUdevice device = 0;  // the device that accesses the memory
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  bool write = false;
  bool maybe_host = false;  // an unregistered address is host memory
  // Output. Mapped pages are accessed through the driver's view of them. If there is no
  // contiguous view, `host` is the device address itself; `pieces` lists the parts of the view.
  char *host = nullptr;
  std::vector<host_bytes> pieces;  // the parts, if there is more than one
};

class pin_guard {
 public:
  pin_guard() = default;
  pin_guard(const pin_guard &) = delete;
  pin_guard &operator=(const pin_guard &) = delete;
  ~pin_guard();
  // Resolves and pins all accesses atomically. Returns false, and pins none, if one of them is not
  // accessible.
  bool take(pinned_access *list, std::size_t count);

 private:
  std::vector<std::uint64_t> pins_;
};

// Waits until the range is not pinned. Returns true if it released the lock to wait; the caller
// must then look up its state again. Requires the lock.
bool wait_for_pins(std::unique_lock<std::shared_mutex> &lock, CUdeviceptr at, std::size_t bytes);

// ---- Life cycle ----

// Makes memory of a device unavailable (hostcuda_occupy).
CUresult occupy(CUdevice device, std::size_t bytes);

}  // namespace hostcuda
