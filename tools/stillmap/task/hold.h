// Holds received memory until it is sent on.
#pragma once

#include <functional>
#include <string>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/control/server.h"
#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/task/wait_for_signal.h"

namespace stillmap::tool {

// Listens at the control address and refuses every request, until the memory is here: memory that no
// request can reach must not be accepted at all. Errors: the address is in use, or not possible.
outcome<control::server> reserve_control(const device &d, const std::string &control);

// Runs a control server at that address until `end` is requested, or nothing of `memory` is left here.
// `ready` is called when the server runs. If it cannot run all the same, that is reported, and the
// memory is held: it exists nowhere else.
exit_status hold(const device &d, const checkpoint::restored_memory &memory,
                 control::server reserved, control::server_options options, signal_waiter &end,
                 const std::function<void(const std::string &control)> &ready);

}  // namespace stillmap::tool
