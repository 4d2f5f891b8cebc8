// Memory of a task that others ask about, and a place to ask at.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "stillmap/checkpoint/common/restored_memory.h"

namespace stillmap::control::testing {

// Far from where a kernel puts things, so that another process has the addresses free too. A thread
// sanitizer leaves few such places.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t far_away = 0x5610'0000'0000;
#else
constexpr std::uint64_t far_away = 0x2100'0000'0000;
#endif
constexpr std::uint64_t weights_at = far_away, cache_at = far_away + 0x10'0000'0000;

// Four pages of weights, pattern 1, and two of cache, pattern 2. Exportable where the device can.
checkpoint::restored_memory weights_and_cache(const device &d, bool exportable = true);
::testing::AssertionResult is_whole(const device &d);

// An abstract name that no other sandbox has.
std::string new_place();

}  // namespace stillmap::control::testing
