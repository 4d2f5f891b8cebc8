// OpenSSL's objects with owners, and its errors as ours. Internal.
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/credentials.h"

namespace stillmap::migration {

template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T *p) const {
    Free(p);
  }
};
template <class T, auto Free>
using owned = std::unique_ptr<T, freed_by<Free>>;

using owned_bio = owned<BIO, BIO_free_all>;
using owned_certificate = owned<X509, X509_free>;
using owned_key = owned<EVP_PKEY, EVP_PKEY_free>;
using owned_context = owned<SSL_CTX, SSL_CTX_free>;
using owned_ssl = owned<SSL, SSL_free>;

// What OpenSSL said last, in this thread; `otherwise` where it said nothing. Its texts are
// literals.
error openssl_error(errc like, const char *operation, const char *otherwise);

owned_bio reading(const std::string &pem);
std::string fingerprint_of(const X509 *certificate);
std::string common_name_of(const X509 *certificate);

// A context for connections of TLS 1.3 at which both ends prove who they are.
// Errors: invalid_argument.
result<owned_context> make_context(const credentials &c, bool listening);

}  // namespace stillmap::migration
