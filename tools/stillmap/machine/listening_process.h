// Which process listens on a control socket, where no connection to it says so.
#pragma once

#include <sys/types.h>

#include <string>

namespace stillmap::tool {

// Of an abstract socket that a process has named by its id ("@stillmap-42.control"), if that process has the socket
// open: names are anybody's choice. 0: it does not, or this user may not know.
pid_t listening_process(const std::string &socket);

}  // namespace stillmap::tool
