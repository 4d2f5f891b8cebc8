// What every call of virtual memory management checks before it does anything.
#pragma once

#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {

using mapping_iterator = std::map<CUdeviceptr, mapping>::iterator;

// NOT_SUPPORTED on a machine without it.
CUresult vmm_here();

// Creating, mapping and granting are refused under a GLOBAL capture: no source says what a driver
// does, and refusing is the answer under which no program can come to depend on it.
CUresult allowed_now();

// Whether a range is made of whole pages.
bool sane_range(CUdeviceptr at, std::size_t bytes);

// Whether [at, at + bytes) is made of whole mappings without a hole; *first is the first of them.
// Requires: the_memory().mutex held.
bool whole_mappings(CUdeviceptr at, std::size_t bytes, mapping_iterator *first);

// Calls change(address, mapping) for each mapping of a range that whole_mappings() found whole.
template <class Change>
void each_mapping(mapping_iterator first, CUdeviceptr end, Change change) {
  for (auto it = first;; ++it) {
    change(it->first, it->second);
    if (it->first + it->second.bytes >= end) return;
  }
}

}  // namespace hostcuda
