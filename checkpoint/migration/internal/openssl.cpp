#include "stillmap/checkpoint/migration/internal/openssl.h"

#include <openssl/err.h>

namespace stillmap::migration {

error openssl_error(errc c, const char *fallback) {
  const char *reason = nullptr;
  for (unsigned long e = ERR_get_error(); e != 0; e = ERR_get_error()) {
    if (reason == nullptr) reason = ERR_reason_error_string(e);
  }
  return make_error(c, reason != nullptr ? reason : fallback).value();
}

owned_bio read_bio(const std::string &pem) {
  return owned_bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

fingerprint_text::fingerprint_text(const X509 *certificate) noexcept {
  constexpr const char *digits = "0123456789abcdef";
  std::array<unsigned char, 32> hash{};
  if (certificate == nullptr || X509_digest(certificate, EVP_sha256(), hash.data(), nullptr) != 1) {
    return;
  }
  for (const unsigned char b : hash) {
    text_[size_++] = digits[b >> 4];
    text_[size_++] = digits[b & 15];
  }
}

std::string fingerprint_of(const X509 *certificate) {
  return std::string(fingerprint_text(certificate).text());
}

std::string common_name_of(const X509 *certificate) {
  char name[256] = "";
  if (certificate != nullptr) {
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                              sizeof name);
  }
  return name;
}

}  // namespace stillmap::migration
