// Owning handles for OpenSSL objects, and OpenSSL's errors as stillmap::error.
#pragma once

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "stillmap/vmm/base/error.h"

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

// This thread's OpenSSL error, cleared, as an error with code `c`. Its reason is OpenSSL's text (a
// literal), or `fallback` if OpenSSL has none.
error openssl_error(errc c, const char *fallback);

// Reads from `pem`, which must outlive the result.
owned_bio read_bio(const std::string &pem);
// SHA-256 in hexadecimal; empty on failure. Allocates nothing.
class fingerprint_text {
 public:
  explicit fingerprint_text(const X509 *certificate) noexcept;
  bool empty() const { return size_ == 0; }
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 64> text_;
  std::size_t size_ = 0;
};
// The same as a string.
std::string fingerprint_of(const X509 *certificate);
std::string common_name_of(const X509 *certificate);

}  // namespace stillmap::migration
