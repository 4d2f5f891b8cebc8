// How many times the calling thread has asked the host for memory. Only that one: hostcuda runs in
// this process, and its streams' threads take memory whenever they come to their work.
#pragma once

#include <cstdint>

namespace stillmap::testing {

std::uint64_t host_allocations();

}  // namespace stillmap::testing
