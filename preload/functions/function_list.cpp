#include "preload/functions/function_list.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace stillmap::preload {

constinit std::atomic<void *> next_functions[function_count]{};

#define STILLMAP_DECLARE(symbol, name, since, stream, waits, parameters, arguments) \
  extern "C" driver_code symbol parameters;
#define STILLMAP_DECLARE_NVML(symbol, parameters, arguments) \
  extern "C" driver_code symbol parameters;
STILLMAP_DRIVER_FUNCTIONS(STILLMAP_DECLARE)
STILLMAP_NVML_FUNCTIONS(STILLMAP_DECLARE_NVML)
#undef STILLMAP_DECLARE
#undef STILLMAP_DECLARE_NVML

namespace {

constexpr bool legacy = false;
constexpr bool per_thread = true;

struct row {
  std::string_view symbol;
  std::string_view name;  // empty: cuGetProcAddress does not know it
  int since;
  bool per_thread_stream;
};

// Sorted by symbol, as the lists are; the driver's functions first.
constexpr row rows[] = {
#define STILLMAP_ROW(symbol, name, since, stream, waits, parameters, arguments) \
  {#symbol, #name, since, stream},
#define STILLMAP_ROW_NVML(symbol, parameters, arguments) {#symbol, {}, 0, legacy},
    STILLMAP_DRIVER_FUNCTIONS(STILLMAP_ROW) STILLMAP_NVML_FUNCTIONS(STILLMAP_ROW_NVML)
#undef STILLMAP_ROW
#undef STILLMAP_ROW_NVML
};
static_assert(std::size(rows) == function_count);
static_assert(std::ranges::is_sorted(rows, {}, &row::symbol));

// The address of a wrapper as this library has it, not as the program's first definition of the symbol.
#define STILLMAP_WRAPPER(symbol, ...) reinterpret_cast<void *>(&::stillmap::preload::symbol),
void *const wrappers[] = {STILLMAP_DRIVER_FUNCTIONS(STILLMAP_WRAPPER)
                              STILLMAP_NVML_FUNCTIONS(STILLMAP_WRAPPER)};
#undef STILLMAP_WRAPPER

}  // namespace

std::optional<function> find_symbol(std::string_view symbol) noexcept {
  const row *const found = std::ranges::lower_bound(rows, symbol, {}, &row::symbol);
  if (found == std::end(rows) || found->symbol != symbol) return std::nullopt;
  return static_cast<function>(found - rows);
}

std::optional<function> find_by_name(std::string_view name, int version,
                                     bool per_thread_stream) noexcept {
  const row *best = nullptr;
  // The variants of a name are neighbours or nearly so; its own row, if any, is the first.
  for (const row *r = std::ranges::lower_bound(rows, name, {}, &row::symbol);
       r != std::end(rows) && r->symbol.starts_with(name); ++r) {
    if (r->name != name || r->since > version || (r->per_thread_stream && !per_thread_stream))
      continue;
    const auto rank = [](const row &x) { return 2 * x.since + (x.per_thread_stream ? 1 : 0); };
    if (best == nullptr || rank(*r) > rank(*best)) best = r;
  }
  if (best == nullptr) return std::nullopt;
  return static_cast<function>(best - rows);
}

const char *symbol_of(function f) noexcept {
  return rows[static_cast<std::size_t>(f)].symbol.data();  // of a literal: it ends with 0
}

void *wrapper_of(function f) noexcept {
  return wrappers[static_cast<std::size_t>(f)];
}

}  // namespace stillmap::preload
