// Addresses far from where a kernel puts things, so that another process has them free too. A
// thread sanitizer leaves few such places.
#pragma once

#include <cstdint>

namespace stillmap::testing {

#ifdef __SANITIZE_THREAD__
inline constexpr std::uint64_t far_away = 0x5600'0000'0000;
#else
inline constexpr std::uint64_t far_away = 0x2000'0000'0000;
#endif

}  // namespace stillmap::testing
