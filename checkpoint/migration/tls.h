// TCP with TLS 1.3, both ends proving who they are.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration {

// To "host:port" or "[address]:port". Errors: invalid_argument (no such place; the credentials are
// incomplete or do not fit together).
result<std::unique_ptr<transport>> tls_to(const std::string &where, const credentials &c);

// Listens at "host:port"; port 0: one that is free, where() tells. Errors: as tls_to, the system's.
result<std::unique_ptr<acceptor>> tls_at(const std::string &where, const credentials &c);

}  // namespace stillmap::migration
