// The status of several controlled processes, queried at once. docs/control.md
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/requests.h"

namespace stillmap::control {

struct queried_status {
  result<process_status> status;
  // Of the process that listens, from the kernel, in this process's PID namespace; nullopt: no connection was made.
  // What the status itself says of the process is its own word.
  std::optional<checkpoint::peer_credentials> server;
};

// What client::status() returns for each address, in their order. All are queried at once, on this
// thread: processes that do not reply delay no other, and take `timeout` together.
// Errors: of the host's memory. Of each status: as client::status(); busy (no response in time).
// Cost:   a descriptor for each process that has not replied yet, at most max_open_queries.
inline constexpr std::size_t max_open_queries = 256;
result<std::vector<queried_status>> query_status(std::span<const std::string> addresses,
                                                 std::chrono::milliseconds timeout);

}  // namespace stillmap::control
