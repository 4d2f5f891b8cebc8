// The books of all memory: who reserved, created, mapped and allocated what.
//
// Lock order: the_memory().mutex > the books of the contexts > a page file's. the_memory().mutex is
// never held across anything of the execution side, nor while pages are zeroed or given back.
// docs/hostcuda.md#memory
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory.h"
#include "hostcuda/src/memory/host_pages.h"

namespace hostcuda {

constexpr int kHostLocation = kMaxDevices;  // where a device ordinal is meant but it is the host

// Access rights: two bits per location, as CUmemAccess_flags.
using access_bits = std::uint64_t;
inline unsigned access_of(access_bits bits, int location) {
  return static_cast<unsigned>(bits >> (2 * location)) & 3U;
}
inline access_bits with_access(access_bits bits, int location, unsigned access) {
  return (bits & ~(access_bits{3} << (2 * location))) | (access_bits{access} << (2 * location));
}

// Memory of a device, whatever it was allocated for. Its pages live until `refs` is 0.
struct physical {
  std::uint64_t id = 0;
  int location = 0;
  extent where;
  bool own_file = false;  // where.fd is its own, for sharing
  bool counted = true;    // in the device's used bytes; what another process created is not
  bool vmm = false;       // made by cuMemCreate or imported
  std::uint64_t refs = 0;
  std::pair<std::uint64_t, std::uint64_t> file_id{};  // device and inode, where own_file
  std::set<CUdeviceptr> mapped_at;                    // every address it is mapped at
  std::once_flag viewed;                              // where own_file: `where.view` is looked for
};

// A CUmemGenericAllocationHandle. Alive while the program holds it or it is mapped.
struct vmm_handle {
  CUmemGenericAllocationHandle value = 0;
  physical *memory = nullptr;
  CUmemAllocationProp prop{};
  std::uint64_t held = 0;
  std::uint64_t mappings = 0;
};

struct reservation {
  std::size_t bytes = 0;
  std::size_t mapped = 0;
};

struct mapping {
  std::size_t bytes = 0;
  vmm_handle *handle = nullptr;
  access_bits access = 0;
  bool present = false;  // the host has it there: from when somebody may touch it
};

struct arena;
struct memory_pool;

// One 2 MiB-granular piece of an arena: device memory mapped for good.
struct chunk {
  std::size_t bytes = 0;
  physical *memory = nullptr;
  arena *owner = nullptr;
  std::size_t live = 0;  // blocks in it
};

// What cuMemAlloc, the pools and cuMemAllocManaged hand out.
struct block {
  std::size_t bytes = 0;
  std::size_t footprint = 0;  // bytes after rounding
  arena *owner = nullptr;     // nullptr: managed
  context *ctx = nullptr;     // nullptr: from a pool
  memory_pool *pool = nullptr;
  int location = 0;
  std::uint64_t id = 0;
  bool freeing = false;  // a cuMemFreeAsync is queued
};

// Host memory the driver knows: cuMemHostAlloc or cuMemHostRegister.
struct host_range {
  std::size_t bytes = 0;
  unsigned flags = 0;
  bool registered = false;  // the program's own memory
  context *ctx = nullptr;
  std::uint64_t id = 0;
};

struct memory_registry {
  std::shared_mutex mutex;
  std::map<CUdeviceptr, reservation> reservations;
  std::map<CUdeviceptr, mapping> mappings;
  std::map<CUdeviceptr, chunk> chunks;
  std::map<CUdeviceptr, block> blocks;
  std::map<CUdeviceptr, host_range> host;
  std::unordered_map<CUmemGenericAllocationHandle, std::unique_ptr<vmm_handle>> handles;
  std::map<std::pair<std::uint64_t, std::uint64_t>, physical *> shared_files;
  std::size_t used[kMaxDevices + 1] = {};
  std::size_t occupied[kMaxDevices + 1] = {};
  std::size_t peak = 0;
  std::uint64_t vmm_allocations = 0;
  std::uint64_t accessible_mappings = 0;
  std::atomic<std::uint64_t> aliased{0};  // physical memories mapped more than once
  std::uint64_t next_id = 1;
  CUmemGenericAllocationHandle next_handle = 0x10000;
};

memory_registry &the_memory();

// ---- Physical memory ----

// Creates memory of `bytes` at a location, zeroed, with one reference. CUDA_ERROR_OUT_OF_MEMORY
// when the device or the host is full. Requires: the_memory().mutex is not held.
CUresult create_physical(int location, std::size_t bytes, const CUmemAllocationProp *shared,
                         physical **out);

// Drops one reference; what reached zero is appended to `dead`. Requires the lock.
void drop_locked(physical *memory, std::vector<physical *> *dead);

// Gives dead memory back to the host and the device. Requires: the lock is not held.
void dispose(const std::vector<physical *> &dead);

// Keep track of where memory is mapped. Require the lock.
void note_mapped_locked(physical *memory, CUdeviceptr at);
void note_unmapped_locked(physical *memory, CUdeviceptr at);

// ---- Looking up, all with the lock held ----

// The first element of `m` that starts at or after `at`. A program that grows works at the upper
// end, where no tree needs to be descended.
template <class Map>
typename Map::iterator first_from(Map &m, CUdeviceptr at) {
  if (m.empty() || std::prev(m.end())->first < at) return m.end();
  if (const auto last = std::prev(m.end()); last->first == at) return last;
  return m.lower_bound(at);
}

// The element of `m` whose [start, start + bytes) contains `at`, or end().
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

enum class peer_rule { strict, copies };  // copies reach cuMemAlloc memory of every device

// As resolve(), with the lock held.
void *resolve_locked(CUdevice device, CUdeviceptr at, std::size_t bytes, bool write,
                     peer_rule rule);

// Whether the driver has an entry at all at this address: mapped, reserved, allocated or host.
bool known_locked(CUdeviceptr at);

// ---- Pins: bytes a copy is moving right now; whoever takes them away waits for it ----

struct host_bytes {
  char *at;
  std::size_t bytes;
};

struct pinned_access {
  CUdevice device = 0;  // on whose behalf
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  bool write = false;
  bool maybe_host = false;  // an address the books do not know is plain host memory
  // Out. Mapped pages are reached through the driver's own mapping of them, as a copy engine needs
  // no page tables of the host either. Where that is not in one piece, `host` is the address
  // itself.
  char *host = nullptr;
  std::vector<host_bytes> pieces;  // all of it, where it is more than one
};

class pin_guard {
 public:
  pin_guard() = default;
  pin_guard(const pin_guard &) = delete;
  pin_guard &operator=(const pin_guard &) = delete;
  ~pin_guard();
  // Resolves all of them at one moment. False: one of them is not accessible; nothing is pinned.
  bool take(pinned_access *list, std::size_t count);

 private:
  std::vector<std::uint64_t> pins_;
};

// With the lock held. True: the lock was given up while waiting, so look again.
bool wait_for_pins(std::unique_lock<std::shared_mutex> &lock, CUdeviceptr at, std::size_t bytes);

// ---- Life cycle ----

// Takes memory of a device away (hostcuda_occupy).
CUresult occupy(CUdevice device, std::size_t bytes);

}  // namespace hostcuda
