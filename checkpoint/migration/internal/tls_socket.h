// The socket below a TLS connection, as an OpenSSL BIO.
#pragma once

#include "stillmap/checkpoint/migration/internal/openssl.h"

namespace stillmap::migration {

// Bytes that OpenSSL reads or writes per system call: many TLS records.
inline constexpr std::size_t socket_buffer_bytes = std::size_t{256} << 10;

// Connects `ssl` to a non-blocking socket, which must outlive it. Writes are buffered until the
// buffer is full or BIO_flush(SSL_get_wbio(ssl)) is called. Writing to a closed connection is an
// error and never raises SIGPIPE. Returns false if there is not enough memory.
bool use_socket(SSL *ssl, int socket);

}  // namespace stillmap::migration
