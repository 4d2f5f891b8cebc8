// The functions that the library wraps, by number: those of the driver API, and NVML's that report memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "preload/functions/abi.h"
#include "preload/functions/driver_functions.h"

namespace stillmap::preload {

// X(symbol, parameters, arguments)
#define STILLMAP_NVML_FUNCTIONS(X)                         \
  X(nvmlDeviceGetMemoryInfo, (word a0, word a1), (a0, a1)) \
  X(nvmlDeviceGetMemoryInfo_v2, (word a0, word a1), (a0, a1))

enum class function : std::uint16_t {
#define STILLMAP_NUMBER(symbol, ...) symbol,
  STILLMAP_DRIVER_FUNCTIONS(STILLMAP_NUMBER) STILLMAP_NVML_FUNCTIONS(STILLMAP_NUMBER)
#undef STILLMAP_NUMBER
      count
};
inline constexpr std::size_t function_count = static_cast<std::size_t>(function::count);

// Whether a call waits while memory is suspended. It may then have queued work, too.
constexpr bool waits(function f) {
  constexpr bool waits = true, goes_on = false;
  constexpr bool all[] = {
#define STILLMAP_WAITS(symbol, name, since, stream, wait, ...) wait,
      STILLMAP_DRIVER_FUNCTIONS(STILLMAP_WAITS)
#undef STILLMAP_WAITS
  };
  return static_cast<std::size_t>(f) < std::size(all) && all[static_cast<std::size_t>(f)];
}

// Two libraries with one value number the functions alike.
constexpr std::uint64_t numbering() {
  constexpr const char *all[] = {
#define STILLMAP_TEXT(symbol, ...) #symbol,
      STILLMAP_DRIVER_FUNCTIONS(STILLMAP_TEXT) STILLMAP_NVML_FUNCTIONS(STILLMAP_TEXT)
#undef STILLMAP_TEXT
  };
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char *text : all) {
    do hash = (hash ^ static_cast<unsigned char>(*text)) * 1099511628211U;
    while (*text++ != 0);
  }
  return hash;
}

// The newest CUDA version whose functions are in the table.
inline constexpr int newest_version = 13050;

// The function with this exported symbol.
std::optional<function> find_symbol(std::string_view symbol) noexcept;

// The function that cuGetProcAddress returns for a name, a version and a kind of default stream.
std::optional<function> find_by_name(std::string_view name, int version, bool per_thread) noexcept;

STILLMAP_FOR_SERVICE const char *symbol_of(function f) noexcept;

// The wrapper that this library exports.
void *wrapper_of(function f) noexcept;

// Where a wrapper passes its call on: what the program would have found without this library. Null until it
// is known.
STILLMAP_FOR_SERVICE extern std::atomic<void *> next_functions[function_count];

inline void *next_of(function f) noexcept {
  return next_functions[static_cast<std::size_t>(f)].load(std::memory_order_relaxed);
}

// The first that is found stays.
inline void set_next(function f, void *found) noexcept {
  void *none = nullptr;
  next_functions[static_cast<std::size_t>(f)].compare_exchange_strong(none, found,
                                                                      std::memory_order_release);
}

}  // namespace stillmap::preload
