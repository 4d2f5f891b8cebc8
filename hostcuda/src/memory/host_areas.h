// The kernel's own ceiling: the areas of address space that a process may have (vm.max_map_count,
// usually 65,530). At that ceiling nothing works any more: no mapping can be taken back, since that
// splits an area, and the program's own allocations fail. So mapping is refused with room to spare.
// Thread-safe. The room also covers what threads do at the same time and what is not counted.
#pragma once

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

}  // namespace hostcuda
