#include "stillmap/checkpoint/control/process_server.h"

#include <unistd.h>

#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::control {
namespace {

constexpr int max_names = 16;

std::string name_of_process(int ordinal, int attempt) {
  std::string name = "stillmap-" + std::to_string(::getpid());
  if (ordinal != 0) name += "." + std::to_string(ordinal);
  if (attempt > 1) name += "-" + std::to_string(attempt);
  return name + ".control";
}

}  // namespace

result<server> create_process_server(const device &d, const std::string &where,
                                     const server_options &options) {
  return with_host_memory("control::create_process_server", [&]() -> result<server> {
    const std::string front = where.empty() ? "@" : where.ends_with('/') ? where : where + "/";
    for (int attempt = 1;; ++attempt) {
      auto made = server::create(d, front + name_of_process(d.ordinal(), attempt), options);
      if (made || attempt == max_names || !made.error().is(errc::busy)) return made;
    }
  });
}

}  // namespace stillmap::control
