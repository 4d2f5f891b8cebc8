// Checks common to the functions of virtual memory management.
#pragma once

#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

using mapping_iterator = mapping_map::iterator;

// Returns STREAM_CAPTURE_UNSUPPORTED during a global capture. CUDA does not document whether
// create, map and set-access are allowed there; hostcuda refuses, so that no program depends on it,
// unless the setting vmm_in_capture=allow says otherwise.
CUresult allowed_now();

// Whether a range consists of whole pages.
bool sane_range(CUdeviceptr at, std::size_t bytes);

// Whether [at, at + bytes) consists of whole mappings without a hole. Sets *first to the first one, and
// calls visit(address, mapping) for each up to the hole.
// Requires: the_memory().mutex is held.
template <class Visit>
bool whole_mappings(CUdeviceptr at, std::size_t bytes, mapping_iterator *first, Visit visit) {
  memory_registry &b = the_memory();
  auto it = first_from(b.mappings, at);
  *first = it;
  // Does not increment past the last mapping, because that step climbs the whole tree.
  for (CUdeviceptr reached = at;; ++it) {
    if (it == b.mappings.end() || it->first != reached) return false;
    visit(it->first, it->second);
    reached += it->second.bytes;
    if (reached >= at + bytes) return reached == at + bytes;
  }
}

// Calls change(address, mapping) for each mapping of a range for which whole_mappings() is true.
template <class Change>
void each_mapping(mapping_iterator first, CUdeviceptr end, Change change) {
  for (auto it = first;; ++it) {
    change(it->first, it->second);
    if (it->first + it->second.bytes >= end) return;
  }
}

}  // namespace hostcuda
