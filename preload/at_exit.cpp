// Writes what the program did, where STILLMAP_PRELOAD_STATS asks for it. A process that has not used CUDA writes
// nothing.
#include <cstdio>
#include <new>

#include "preload/memory/heaps.h"
#include "preload/memory/statistics.h"
#include "preload/settings.h"

namespace stillmap::preload {
namespace {

[[gnu::destructor]] void at_exit() {
  bool used = false;
  heaps::each([&](caching_allocator &) { used = true; });
  if (!used || given_settings().stats.empty()) return;
  const std::string &file = given_settings().stats;
  try {
    const std::string text = describe_program();
    std::FILE *const to = file == "-" ? stderr : std::fopen(file.c_str(), "we");
    if (to == nullptr) return;
    std::fputs(text.c_str(), to);
    if (to != stderr) std::fclose(to);
  } catch (const std::bad_alloc &) {
  }
}

}  // namespace
}  // namespace stillmap::preload
