#include "tools/stillmap/task/hold.h"

#include <fmt/format.h>

#include <cstdio>

namespace stillmap::tool {
namespace {

bool is_empty(const device &d, const checkpoint::memory_layout &l) {
  for (const auto &b : l.blocks) {
    for (const mapping_record &m : d.space().mappings(b.range)) {
      if (m.state == mapping_state::mapped) return false;
    }
  }
  return true;
}

}  // namespace

void hold(const device &d, const checkpoint::restored_memory &memory, const std::string &where,
          control::server_options how, until_told &end, const std::function<void()> &ready) {
  // What is away by suspending comes back; what was handed on does not.
  how.task.given_away = [&](auto) {
    if (is_empty(d, memory.layout())) end.tell();
  };
  const auto server = control::server::start(d, where, std::move(how));
  if (!server) {
    fmt::print(stderr, "stillmap: {}: {}; the memory is held, but nobody can ask for it\n", where,
               server.error().message());
  }
  ready();
  end.wait();
}

}  // namespace stillmap::tool
