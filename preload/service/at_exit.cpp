// Writes what the program did, where STILLMAP_PRELOAD_STATS asks for it. A process that has allocated no device
// memory writes nothing.
#include <unistd.h>

#include <cstdio>
#include <new>

#include "preload/service/memory/statistics.h"
#include "preload/service/settings.h"

namespace stillmap::preload {
namespace {

// %p in a name stands for the process, so that those that a program starts write files of their own.
std::string with_process(std::string file) {
  if (const std::size_t at = file.find("%p"); at != std::string::npos) {
    file.replace(at, 2, std::to_string(::getpid()));
  }
  return file;
}

[[gnu::destructor]] void at_exit() {
  if (!any_allocation() || given_settings().stats.empty()) return;
  try {
    const std::string file = with_process(given_settings().stats);
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
