// OpenSSL contexts for mutually authenticated TLS 1.3 connections.
#pragma once

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/internal/openssl.h"

namespace stillmap::migration {

// Errors: invalid_argument (incomplete or inconsistent credentials).
result<owned_context> create_tls_context(const credentials &c, bool listening);

}  // namespace stillmap::migration
