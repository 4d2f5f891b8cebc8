// A control server under a name that tells which process it is: where programs have not chosen an address.
#pragma once

#include <string>

#include "stillmap/checkpoint/control/server.h"

namespace stillmap::control {

// Listens at "stillmap-PID.control", for a device other than the first at "stillmap-PID.DEVICE.control": an abstract
// name, which `stillmap task list` finds, or a file in the folder `where`. Processes with one id, in containers that
// share a network, get names with a number behind it.
// Errors: as server::create; busy: so many names are taken.
// Cost:   no driver call.
result<server> create_process_server(const device &d, const std::string &where,
                                     const server_options &options);

}  // namespace stillmap::control
