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

outcome<control::server> reserve_control(const device &d, const std::string &control) {
  control::server_options options;
  options.allow = [](const auto &) { return false; };
  return about(control::server::create(d, control, std::move(options)), control);
}

exit_status hold(const device &d, const checkpoint::restored_memory &memory,
                 control::server reserved, control::server_options options, signal_waiter &end,
                 const std::function<void(const std::string &control)> &ready) {
  options.task.released = [&](auto) {
    if (is_empty(d, memory.layout())) end.request();
  };
  const std::string control = reserved.address();
  { const control::server closed = std::move(reserved); }
  const auto server = control::server::create(d, control, std::move(options));
  if (server) {
    ready(control);
  } else {
    fmt::print(stderr, "stillmap: {}: {}; the memory is held, but no request can reach it\n",
               control, server.error().message());
  }
  end.wait();
  return server ? exit_ok : exit_failed;
}

}  // namespace stillmap::tool
