// How many times this test program has asked the host for memory.
#pragma once

#include <cstdint>

namespace stillmap::testing {

std::uint64_t host_allocations();

}  // namespace stillmap::testing
