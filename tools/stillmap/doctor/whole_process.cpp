#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/doctor/checkpoint.h"

namespace stillmap::tool {
namespace {

constexpr int first_with_checkpoint = 12080;

// "4.2.1" -> {4, 2}; anything else: {0, 0}.
std::pair<int, int> two_numbers(const std::string &text) {
  int major = 0, minor = 0;
  if (std::sscanf(text.c_str(), "%d.%d", &major, &minor) < 1) return {0, 0};
  return {major, minor};
}

}  // namespace

finding driver_checkpoint(const driver &drv) {
  finding f{"driver_checkpoint", "the driver's state", works::yes,
            "the driver has cuCheckpointProcess* and can save its state of a process", ""};
  if (drv.is_hostcuda()) {
    f.does = works::no;
    f.says = "hostcuda cannot save processes";
    f.fix = "a GPU";
  } else if (drv.version() < first_with_checkpoint ||
             drv.symbol("cuCheckpointProcessLock") == nullptr) {
    f.does = works::no;
    f.says = fmt::format("this driver (CUDA {}) has no cuCheckpointProcess*, which came with {}",
                         version_text(drv.version()), version_text(first_with_checkpoint));
    f.fix = "driver 570 or newer";
  }
  return f;
}

finding criu(const std::optional<std::string> &version, const std::string &kernel) {
  finding f{"criu", "CRIU", works::yes, "", ""};
  if (!version) {
    f.does = works::no;
    f.says = "not found: whole processes cannot be saved; Stillmap's own images do not need it";
    f.fix = "criu 4.1 or newer in the PATH, or named by STILLMAP_CRIU";
    return f;
  }
  f.says = fmt::format("{} on Linux {}", *version, kernel);
  // The clock's data is two areas from 6.13 on. docs/criu.md
  if (two_numbers(kernel) >= std::pair(6, 13) && two_numbers(*version) < std::pair(4, 1)) {
    f.does = works::no;
    f.says +=
        ": it supports kernels up to 6.12 (\"Unexpected rt vDSO area bounds\"); Debian 12 "
        "has 3.17.1";
    f.fix = "criu 4.1 or newer";
  } else if (::geteuid() != 0) {
    f.does = works::limited;
    f.says += ": only for root";
    f.fix = "start as root, or give criu CAP_CHECKPOINT_RESTORE";
  }
  return f;
}

finding criu_here() {
  utsname kernel = {};
  ::uname(&kernel);
  const char *const named = std::getenv("STILLMAP_CRIU");
  std::optional<std::string> version;
  for (const std::string &program :
       {std::string(named != nullptr ? named : "criu"), std::string("/usr/sbin/criu")}) {
    // Quoted for the shell.
    std::string word = "'";
    for (const char c : program) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    const std::unique_ptr<FILE, int (*)(FILE *)> from(
        ::popen((word + "' --version 2>/dev/null").c_str(), "r"), ::pclose);
    std::array<char, 256> line{};
    constexpr std::string_view start = "Version: ";
    if (from && std::fgets(line.data(), line.size(), from.get()) != nullptr &&
        std::string_view(line.data()).substr(0, start.size()) == start) {
      version = std::string(line.data() + start.size());
      while (!version->empty() && version->back() <= ' ') version->pop_back();
    }
    if (version || named != nullptr) break;
  }
  return criu(version, kernel.release);
}

}  // namespace stillmap::tool
