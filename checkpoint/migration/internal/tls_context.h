// OpenSSL contexts for mutually authenticated TLS 1.3 connections.
#pragma once

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/checkpoint/migration/internal/openssl.h"

namespace stillmap::migration {

// `host`: what a source connects to, whose name an authority's certificate must contain unless the
// credentials give another; null: of a destination.
// Errors: invalid_argument (incomplete or inconsistent credentials).
result<owned_context> create_tls_context(const credentials &c, const std::string *host);

}  // namespace stillmap::migration
