#include "bench/support/host.h"

#include <unistd.h>

#include <cstdlib>

namespace stillmap::bench {

const char *environment(const char *name) {
  const char *const text = std::getenv(name);
  return text != nullptr ? text : "";
}

result<driver *> find_driver() {
  auto found = driver::get();
  if (found || *environment("STILLMAP_DRIVER") != '\0') return found;
  return driver::load("host");
}

std::string commit() {
  const std::string given = environment("STILLMAP_COMMIT");
  return given.empty() ? "unknown" : given;
}

std::string hostcuda_settings(const std::string &more) {
  const std::string given = environment("HOSTCUDA");
  return given.empty() ? more : given + ',' + more;
}

hostcuda_counters hostcuda_counters_of(const driver &drv) {
  hostcuda_counters out = {};
  call_hostcuda<decltype(hostcuda_get_counters)>(drv, "hostcuda_get_counters", &out);
  return out;
}

std::string temporary_folder() {
  const std::string given = environment("TMPDIR");
  return given.empty() ? "/tmp" : given;
}

std::string file_for_bench(const std::string &folder, const char *ending) {
  return folder + "/stillmap-bench-" + std::to_string(::getpid()) + ending;
}

}  // namespace stillmap::bench
