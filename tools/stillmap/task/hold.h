// Holds received memory until it is sent on.
#pragma once

#include <functional>
#include <string>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/control/server.h"
#include "tools/stillmap/task/wait_for_signal.h"

namespace stillmap::tool {

// Runs a control server at `control` until `end` is requested, or nothing of `memory` is left here.
// `ready` is called when the server runs. If it cannot run, that is reported, and the memory is held
// all the same: it exists nowhere else.
void hold(const device &d, const checkpoint::restored_memory &memory, const std::string &control,
          control::server_options options, signal_waiter &end, const std::function<void()> &ready);

}  // namespace stillmap::tool
