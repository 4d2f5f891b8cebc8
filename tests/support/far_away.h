// Addresses far from the kernel's own placements, so that they are free in another process, too.
// ThreadSanitizer leaves few of them.
#pragma once

#include <cstdint>

namespace stillmap::testing {

#ifdef __SANITIZE_THREAD__
inline constexpr std::uint64_t far_away = 0x5600'0000'0000;
#else
inline constexpr std::uint64_t far_away = 0x2000'0000'0000;
#endif

}  // namespace stillmap::testing
