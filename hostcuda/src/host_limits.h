// Limits of the host that bound the simulated devices: its memory, and the number of mappings
// (vm.max_map_count). Thread-safe.
//
// At the mapping limit nothing works any more: unmapping splits an area, so it fails too, and so do
// the program's own allocations. hostcuda therefore refuses mappings with room to spare. The room
// also covers what threads do at the same time and what is not counted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hostcuda {

// The most areas to have, with a sixteenth of what the kernel allows left to the program: so many
// mappings fit when each is an area of its own, half of them when each also leaves a hole.
std::uint64_t most_areas();

// Whether `n` more areas may be made. Looks at the process only when what it last saw is used up.
bool take_areas(std::uint64_t n);

// The same for what must not be refused: taking a mapping back.
void spend_areas(std::uint64_t n);

// What a mapping takes: itself, and the rest of the reservation behind it.
constexpr std::uint64_t kAreasOfMapping = 2;

// Of what was taken, one mapping is made later; or one that was to be made later is made now, or
// never. Who counts the process's areas cannot see those.
void owe_mapping();
void settle_mapping();

// Bytes of host memory, or what the memory cgroup allows of it.
std::size_t host_memory();

// Bytes that the kernel can still hand out: the smaller of the machine and the memory cgroup.
std::size_t available_host_memory();

}  // namespace hostcuda
