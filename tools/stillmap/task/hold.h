// Holds received memory until it is sent on.
#pragma once

#include <functional>
#include <string>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/control/server.h"
#include "tools/stillmap/common/outcome.h"
#include "tools/stillmap/task/wait_for_signal.h"

namespace stillmap::tool {

struct reserved_control {
  control::server server;  // refuses every request
  control::audit_function audit;
};

// Listens at the control address and refuses every request, until the memory is here: memory that no
// request can reach must not be accepted at all. Errors: the address is in use, or not possible; the audit log that the
// environment names cannot be written.
outcome<reserved_control> reserve_control(const device &d, const std::string &control);

// Checks that an image of this name can be written when it is needed. Empty: none is.
// Errors: exit_refused (it exists), exit_not_found (no such folder), the system's.
outcome<void> check_save(const std::string &image);

// The result of a command that waits for memory and holds it. With --save, one that is asked to end while it waits has
// nothing to save, and has not failed.
outcome<exit_status> nothing_to_save_is_ok(outcome<exit_status> result, const std::string &save);

struct hold_options {
  control::server_options server;
  // The image to save what is left as, when asked to end. Empty: ask again, and then lose it.
  std::string save;
  // Called when the control server runs. If it cannot run all the same, that is reported, and the
  // memory is held: it exists nowhere else.
  std::function<void(const std::string &control)> ready;
};

// Runs a control server at the reserved address until nothing of `memory` is left here, or until it is
// asked to end: then it saves what is left, or says how to and waits to be asked again.
// Errors: exit_failed (some of the memory is lost).
outcome<exit_status> hold(const device &d, const checkpoint::restored_memory &memory,
                          reserved_control reserved, hold_options options, signal_waiter &end);

}  // namespace stillmap::tool
