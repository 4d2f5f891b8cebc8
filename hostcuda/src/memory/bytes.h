// Copies and fills bytes of device memory.
//
// Under ThreadSanitizer both are inline assembly, because device addresses may lie outside the
// range that it can shadow (a reservation of terabytes). The oracle detects races on these bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

#ifdef __SSE2__
constexpr std::size_t kLine = 64;

inline void stream_line(char *to, const char *from) {
  _mm_prefetch(from + 2 * kLine, _MM_HINT_T0);
  const auto *const s = reinterpret_cast<const __m128i *>(from);
  auto *const d = reinterpret_cast<__m128i *>(to);
  // Written out, because a loop is not unrolled at every optimisation level and is then a third
  // slower.
  const __m128i a = _mm_loadu_si128(s), b = _mm_loadu_si128(s + 1);
  const __m128i c = _mm_loadu_si128(s + 2), e = _mm_loadu_si128(s + 3);
  _mm_stream_si128(d, a);
  _mm_stream_si128(d + 1, b);
  _mm_stream_si128(d + 2, c);
  _mm_stream_si128(d + 3, e);
}

// Copies with non-temporal stores, one cache line of each of four pages in turn, to use more memory
// banks. memcpy does the same only above hundreds of MiB.
// Requires: the ranges do not overlap.
inline void stream_bytes(char *to, const char *from, std::size_t bytes) {
  constexpr std::size_t page = 4096;
  const std::size_t lead = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, lead);
  to += lead;
  from += lead;
  bytes -= lead;
  for (; bytes >= 4 * page; bytes -= 4 * page, to += 4 * page, from += 4 * page) {
    for (std::size_t at = 0; at < page; at += kLine) {
      stream_line(to + at, from + at);
      stream_line(to + at + page, from + at + page);
      stream_line(to + at + 2 * page, from + at + 2 * page);
      stream_line(to + at + 3 * page, from + at + 3 * page);
    }
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
}
constexpr std::size_t kStreamed = std::size_t{1} << 20;  // threshold for stream_bytes
#else
inline void stream_bytes(char *to, const char *from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
constexpr std::size_t kStreamed = ~std::size_t{0};
#endif

inline void move_bytes(void *to, const void *from, std::size_t bytes) {
  auto *d = static_cast<char *>(to);
  const auto *s = static_cast<const char *>(from);
  if (d + bytes <= s || s + bytes <= d) {
    if (bytes >= kStreamed) return stream_bytes(d, s, bytes);
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
