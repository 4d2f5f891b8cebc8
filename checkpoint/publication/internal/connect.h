// How a client reaches its holder.
#pragma once

#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/publication/publication.h"

namespace stillmap::publication {

// Connects, and checks whose process it is.
// Errors: not_supported (its user is not trusted: value = the uid), the system's.
result<checkpoint::socket_channel> connect(const std::string &address,
                                           const client_options &options);

}  // namespace stillmap::publication
