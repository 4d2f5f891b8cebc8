// Releases the memory of a destroyed context, and of the machine at a reset.
#include <unistd.h>

#include <algorithm>
#include <unordered_set>

#include "hostcuda/src/host_limits.h"
#include "hostcuda/src/memory/arena.h"
#include "hostcuda/src/memory/memory_parts.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

void release_context_memory(context *ctx) {
  forget_arrays(ctx);
  release_block_memory(ctx);
  release_host_memory(ctx);
}

void reset_memory(const settings &next) {
  memory_registry &b = the_memory();
  exclusive lock(b.mutex);
  for (const auto &[at, r] : b.reservations) release_range(as_pointer(at), r.bytes);
  b.reservations.clear();
  for (const auto &[at, m] : b.mappings)
    if (!m.present) settle_mapping();
  b.mappings.clear();
  b.newest_mapping = b.mappings.end();
  std::unordered_set<physical *> memory;  // imported memory may have several handles
  b.handles.each([&](vmm_handle &h) {
    memory.insert(h.memory);
    b.handles.erase(h);
  });
  for (physical *p : memory) {
    if (p->own_file) drop_shared_pages(p->where.fd, p->where.view, p->where.bytes);
    delete p;
  }
  b.shared_files.clear();
  reset_pools();
  reset_graph_memory();
  reset_ipc();
  reset_arrays();
  reset_blocks();
  reset_host_memory();
  const settings &now = current_settings();
  const bool resident = now.backed && !now.lazy && next.backed && !next.lazy;
  reset_pages(resident ? std::min(kKeptAtReset, next.keep) : 0);
  for (int i = 0; i <= kMaxDevices; ++i) b.used[i] = b.occupied[i] = 0;
  b.peak = 0;
  b.vmm_allocations = 0;
  b.accessible_mappings = 0;
  b.aliased = 0;
}

}  // namespace hostcuda
