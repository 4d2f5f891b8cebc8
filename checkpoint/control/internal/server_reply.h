// What a client makes of the server at the other end, and of its messages.
#pragma once

#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/handoff/connection.h"

namespace stillmap::control {

// Anybody can listen at an abstract address, or in a folder that all may write. Root may operate every
// user's task.
// Errors: not_supported (another user's process listens: value = its uid).
status check_server_user(const handoff::connection &server);

// The body of a response.
// Errors: the one in a refusal, corrupt (anything else; the process is no control server).
result<bytes> response_in(handoff::message m);

}  // namespace stillmap::control
