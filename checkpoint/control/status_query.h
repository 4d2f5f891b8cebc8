// The status of several controlled processes, queried at once. docs/control.md
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/requests.h"

namespace stillmap::control {

// What client::status() returns for each address, in their order. All are queried at once, on this
// thread: processes that do not reply delay no other, and take `timeout` together.
// Errors: of the host's memory. Of each status: as client::status(); busy (no response in time).
result<std::vector<result<process_status>>> query_status(std::span<const std::string> addresses,
                                                         std::chrono::milliseconds timeout);

}  // namespace stillmap::control
