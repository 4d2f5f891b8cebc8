// A socket as TLS reads and writes it. Internal.
#pragma once

#include "stillmap/checkpoint/migration/internal/openssl.h"

namespace stillmap::migration {

// What OpenSSL reads and writes at once at the most: many records, so that there are few calls.
inline constexpr std::size_t socket_buffer = std::size_t{256} << 10;

// Has `on` read from the socket, which does not block and outlives it, and write to it through a
// buffer: what is written goes when that is full, or with BIO_flush(SSL_get_wbio(on)). A socket
// that the other side closed is an error and no signal, which a library must not have a process die
// of. False: no memory.
bool use_socket(SSL *on, int socket);

}  // namespace stillmap::migration
