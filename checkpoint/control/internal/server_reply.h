// What a client makes of the server at the other end, and of its messages.
#pragma once

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"

namespace stillmap::control {

// Anybody can listen at an abstract address, or in a folder that all may write. Root may operate every
// user's task.
// Errors: not_supported (another user's process listens: value = its uid).
status check_server_user(const checkpoint::socket_channel &server);

// The body of a response.
// Errors: the one in a refusal, corrupt (anything else; the process is no control server).
result<bytes> response_in(checkpoint::socket_message m);

}  // namespace stillmap::control
