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

void hold(const device &d, const checkpoint::restored_memory &memory, const std::string &control,
          control::server_options options, signal_waiter &end, const std::function<void()> &ready) {
  options.task.released = [&](auto) {
    if (is_empty(d, memory.layout())) end.request();
  };
  const auto server = control::server::create(d, control, std::move(options));
  if (!server) {
    fmt::print(stderr, "stillmap: {}: {}; the memory is held, but no request can reach it\n",
               control, server.error().message());
  }
  ready();
  end.wait();
}

}  // namespace stillmap::tool
