// Counts the host allocations of the calling thread. Other threads are excluded, because hostcuda's
// stream threads allocate in the same process.
#pragma once

#include <cstdint>

namespace stillmap::testing {

std::uint64_t host_allocations();

}  // namespace stillmap::testing
