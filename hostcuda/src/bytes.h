// Moving and filling bytes of device memory at the speed of the machine.
//
// Under ThreadSanitizer both are inline assembly: device addresses may lie outside what it can
// shadow (a reservation of terabytes), and which accesses race is the oracle's question, not its.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOSTCUDA_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define HOSTCUDA_TSAN 1
#endif

namespace hostcuda {

#ifdef HOSTCUDA_TSAN

inline void move_bytes(void *to, const void *from, std::size_t bytes) {
  auto *d = static_cast<char *>(to);
  const auto *s = static_cast<const char *>(from);
  if (d <= s || d >= s + bytes) {
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(bytes) : : "memory");
    return;
  }
  d += bytes - 1;
  s += bytes - 1;
  __asm__ volatile("std\n\trep movsb\n\tcld" : "+D"(d), "+S"(s), "+c"(bytes) : : "memory");
}

inline void fill_bytes(void *at, unsigned value, std::size_t width, std::size_t count) {
  if (width == 1) {
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(count) : "a"(value) : "memory");
  } else if (width == 2) {
    __asm__ volatile("rep stosw" : "+D"(at), "+c"(count) : "a"(value) : "memory");
  } else {
    __asm__ volatile("rep stosl" : "+D"(at), "+c"(count) : "a"(value) : "memory");
  }
}

#else

inline void move_bytes(void *to, const void *from, std::size_t bytes) {
  auto *d = static_cast<char *>(to);
  const auto *s = static_cast<const char *>(from);
  if (d + bytes <= s || s + bytes <= d) {
    std::memcpy(to, from, bytes);
  } else {
    std::memmove(to, from, bytes);
  }
}

inline void fill_bytes(void *at, unsigned value, std::size_t width, std::size_t count) {
  if (width == 1) {
    std::memset(at, static_cast<int>(value & 0xFFU), count);
  } else if (width == 2) {
    auto *p = static_cast<std::uint16_t *>(at);
    for (std::size_t i = 0; i < count; ++i) p[i] = static_cast<std::uint16_t>(value);
  } else {
    auto *p = static_cast<std::uint32_t *>(at);
    for (std::size_t i = 0; i < count; ++i) p[i] = value;
  }
}

#endif

}  // namespace hostcuda
