// Limits of the host that bound the simulated devices: available memory, and the number of memory
// areas of a process (vm.max_map_count). Thread-safe.
//
// At vm.max_map_count, unmapping (which splits an area) and malloc fail too. hostcuda therefore
// keeps a reserve of areas and refuses new mappings earlier. The reserve also covers concurrent
// calls and areas that are not counted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hostcuda {

// Maximum number of areas that hostcuda uses: fifteen sixteenths of vm.max_map_count. A mapping
// takes one area, or two if a hole follows it.
std::uint64_t most_areas();

// Takes `n` areas if the limit permits. Reads /proc/self/maps only when the areas that were free at
// the last reading are used up.
bool take_areas(std::uint64_t n);

// Takes `n` areas for an operation that must not fail, such as an unmap.
void spend_areas(std::uint64_t n);

// Areas of one mapping: the mapping, and the rest of the reservation after it.
constexpr std::uint64_t kAreasOfMapping = 2;

// Counts mappings whose areas are taken but which do not exist in the process yet. owe_mapping()
// adds one; settle_mapping() removes one that is made or cancelled. /proc/self/maps does not show
// them.
void owe_mapping();
void settle_mapping();

// Bytes of host memory: the smallest of the machine's and the limits of the memory cgroups around the
// process.
std::size_t host_memory();

// Bytes that hostcuda may still allocate: what the kernel has left, but for 512 MiB of the machine and
// 64 MiB of each of those cgroups.
std::size_t available_host_memory();

}  // namespace hostcuda
