// Migration transport: TCP with TLS 1.3, mutually authenticated.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration {

// A transport to `address`: "host:port" or "[IPv6 address]:port".
// Errors: invalid_argument (malformed address; incomplete or inconsistent credentials).
result<std::unique_ptr<transport>> create_tls_transport(const std::string &address,
                                                        const credentials &c);

// Listens at `address`. Port 0 selects a free port, which acceptor::address() returns.
// Errors: as create_tls_transport(); invalid_argument (the host name does not resolve), the
//         system's.
result<std::unique_ptr<acceptor>> create_tls_acceptor(const std::string &address,
                                                      const credentials &c);

}  // namespace stillmap::migration
