// Virtual memory management: access rights of mappings (cuMemSetAccess, cuMemGetAccess).
#include <algorithm>
#include <vector>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/host_limits.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/memory_state.h"
#include "hostcuda/src/memory/vmm_rules.h"

namespace hostcuda {
namespace {

// Adjacent mappings that one system call changes: mprotect, or mmap if they are not in the process
// yet. Their rights change alike; for mmap, their bytes are also contiguous.
struct protect_run {
  CUdeviceptr at;
  unsigned before;
  unsigned after;
  bool present;
  extent what;

  bool continues_with(const protect_run &r) const {
    return at + what.bytes == r.at && before == r.before && after == r.after &&
           present == r.present &&
           (present || (what.fd == r.what.fd && what.offset + what.bytes == r.what.offset));
  }
};

unsigned union_of(access_bits bits) {
  // The lower bits of all pairs, and the upper ones.
  constexpr access_bits low = 0x5555'5555'5555'5555;
  return ((bits & low) != 0 ? 1U : 0U) | ((bits & ~low) != 0 ? 2U : 0U);
}

// What the descriptors of a call make of the rights of a mapping.
struct rights_change {
  access_bits named = 0;  // the locations that a descriptor names
  access_bits given = 0;

  access_bits of(access_bits bits) const { return (bits & ~named) | given; }
};

rights_change change_of(const CUmemAccessDesc *desc, std::size_t count) {
  rights_change c;
  for (std::size_t i = 0; i < count; ++i) {
    const bool device = desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    const int location = device ? desc[i].location.id : kHostLocation;
    c.named = with_access(c.named, location, 3);
    c.given = with_access(c.given, location, static_cast<unsigned>(desc[i].flags));
  }
  return c;
}

CUresult check_descriptors(const CUmemAccessDesc *desc, std::size_t count) {
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned flags = static_cast<unsigned>(desc[i].flags);
    if (flags != 0 && flags != 1 && flags != 3) return CUDA_ERROR_INVALID_VALUE;
    const int type = static_cast<int>(desc[i].location.type);
    if (type == 1 && !valid_device(desc[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (type < 1 || type > 3) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool names_host(const CUmemAccessDesc *desc, std::size_t count) {
  return std::any_of(desc, desc + count, [](const CUmemAccessDesc &d) {
    return d.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  });
}

// Whether a descriptor grants access to a device that cannot access memory of `owner`.
bool grants_to_non_peer(const CUmemAccessDesc *desc, std::size_t count, int owner) {
  return owner != kHostLocation &&
         std::any_of(desc, desc + count, [owner](const CUmemAccessDesc &d) {
           return d.location.type == CU_MEM_LOCATION_TYPE_DEVICE && d.flags != 0 &&
                  !can_access_peer(d.location.id, owner);
         });
}

// Checks the descriptors against memory of one location.
CUresult check_location(const CUmemAccessDesc *desc, std::size_t count, int owner) {
  if (owner != kHostLocation && names_host(desc, count)) return CUDA_ERROR_INVALID_VALUE;
  return grants_to_non_peer(desc, count, owner) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

// The changes of one cuMemSetAccess, computed under the lock before any change.
struct access_plan {
  mapping_iterator first;
  rights_change rights;
  std::vector<protect_run> runs;  // none on an unbacked machine
  std::int64_t newly_accessible = 0;
  bool takes_away = false;
};

void add_run(CUdeviceptr at, const mapping &m, access_bits next, std::vector<protect_run> *runs) {
  const unsigned before = union_of(m.access);
  const unsigned after = union_of(next);
  if (before == after) return;
  const extent &memory = m.handle->memory->where;
  const protect_run run{at, before, after, m.present, {memory.fd, memory.offset, m.bytes}};
  if (!runs->empty() && runs->back().continues_with(run)) {
    runs->back().what.bytes += m.bytes;
  } else {
    runs->push_back(run);
  }
}

CUresult plan_access(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc *desc,
                     std::size_t count, access_plan *plan) {
  *plan = access_plan{};
  plan->rights = change_of(desc, count);
  const settings &now = current_settings();
  CUresult refused = CUDA_SUCCESS;
  int checked = -1;  // the location of the mappings before
  const auto add = [&](CUdeviceptr begin, const mapping &m) {
    if (refused != CUDA_SUCCESS) return;
    if (const int owner = m.handle->memory->location; owner != checked) {
      refused = check_location(desc, count, owner);
      if (refused != CUDA_SUCCESS) return;
      checked = owner;
    }
    if (now.machine.fails_rdma_access && m.handle->prop.allocFlags.gpuDirectRDMACapable != 0) {
      refused = CUDA_ERROR_UNKNOWN;
      return;
    }
    const access_bits next = plan->rights.of(m.access);
    if ((m.access & ~next) != 0) plan->takes_away = true;
    plan->newly_accessible += (next != 0 ? 1 : 0) - (m.access != 0 ? 1 : 0);
    if (now.backed) add_run(begin, m, next, &plan->runs);
  };
  if (!whole_mappings(at, bytes, &plan->first, add)) return CUDA_ERROR_INVALID_VALUE;
  if (refused != CUDA_SUCCESS) return refused;
  const auto total =
      static_cast<std::int64_t>(the_memory().accessible_mappings) + plan->newly_accessible;
  if (plan->newly_accessible > 0 && total > static_cast<std::int64_t>(now.machine.mapping_ceiling))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return CUDA_SUCCESS;
}

bool apply(const protect_run &r) {
  return r.present ? protect_range(as_pointer(r.at), r.what.bytes, r.after)
                   : map_extent(as_pointer(r.at), r.what, r.after);
}
bool take_back(const protect_run &r) {
  return r.present ? protect_range(as_pointer(r.at), r.what.bytes, r.before)
                   : unmap_range(as_pointer(r.at), r.what.bytes);
}

// Applies all runs or none. mprotect fails when no area is left to split one. The areas of mappings
// that are not in the process yet were taken when they were created.
bool protect_all(const std::vector<protect_run> &runs) {
  const auto splits = static_cast<std::uint64_t>(
      std::count_if(runs.begin(), runs.end(), [](const protect_run &r) { return r.present; }));
  if (current_settings().backed && !take_areas(kAreasOfMapping * splits)) return false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (apply(runs[i])) continue;
    for (std::size_t k = 0; k < i; ++k) take_back(runs[k]);
    return false;
  }
  return true;
}

void grant(mapping &m, const rights_change &rights) {
  m.access = rights.of(m.access);
  if (m.present || union_of(m.access) == 0) return;
  m.present = true;
  settle_mapping();
}

CUresult set_access(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc *desc,
                    std::size_t count) {
  if (CUresult r = check_descriptors(desc, count); r != CUDA_SUCCESS) return r;
  if (!sane_range(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  memory_registry &b = the_memory();
  access_plan plan;
  exclusive lock(b.mutex);
  if (CUresult r = plan_access(at, bytes, desc, count, &plan); r != CUDA_SUCCESS) return r;
  if (plan.takes_away) {
    lock.unlock();
    range_goes_away(at, bytes, "cuMemSetAccess", false);
    lock.lock();
    do {
      if (CUresult r = plan_access(at, bytes, desc, count, &plan); r != CUDA_SUCCESS) return r;
    } while (wait_for_pins(lock, at, bytes));
  }
  if (!protect_all(plan.runs)) return CUDA_ERROR_OUT_OF_MEMORY;
  each_mapping(plan.first, at + bytes, [&](CUdeviceptr, mapping &m) { grant(m, plan.rights); });
  b.accessible_mappings += static_cast<std::uint64_t>(plan.newly_accessible);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuMemSetAccess, 10020, needs_vmm, size,
               (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count), {
                 if (CUresult r = allowed_now(); r != CUDA_SUCCESS) return r;
                 return set_access(ptr, size, desc, count);
               })

HOSTCUDA_ENTRY(cuMemGetAccess, 10020, needs_vmm, 0,
               (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr), {
                 if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 const int type = static_cast<int>(location->type);
                 if (type < 1 || type > 3) return CUDA_ERROR_INVALID_VALUE;
                 if (type == 1 && !valid_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
                 memory_registry &b = the_memory();
                 std::shared_lock<std::shared_mutex> lock(b.mutex);
                 const auto it = containing(b.mappings, ptr);
                 if (it == b.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
                 *flags = access_of(it->second.access, type == 1 ? location->id : kHostLocation);
                 return CUDA_SUCCESS;
               })
