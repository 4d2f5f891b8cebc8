// Memory of the controlled task in tests, and addresses for its server.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "stillmap/checkpoint/common/restored_memory.h"

namespace stillmap::control::testing {

// Far from where the kernel places mappings, so that the addresses are free in another process too.
// ThreadSanitizer leaves few such addresses.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t far_away = 0x5610'0000'0000;
#else
constexpr std::uint64_t far_away = 0x2100'0000'0000;
#endif
constexpr std::uint64_t weights_at = far_away, cache_at = far_away + 0x10'0000'0000;

// Four pages of weights, pattern 1, and two of cache, pattern 2. Exportable if the device supports it.
checkpoint::restored_memory weights_and_cache(const device &d, bool exportable = true);
::testing::AssertionResult is_whole(const device &d);

// A unique abstract socket name.
std::string new_place();

}  // namespace stillmap::control::testing
