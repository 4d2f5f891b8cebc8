#include "stillmap/checkpoint/migration/credentials.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cerrno>
#include <fstream>

#include "stillmap/checkpoint/migration/internal/openssl.h"

namespace stillmap::migration {
namespace {

constexpr std::size_t largest_file = std::size_t{1} << 20;

result<std::string> read_file(const std::string &path) {
  if (path.empty()) return std::string();
  constexpr const char *op = "migration::load_credentials";
  std::ifstream in(path, std::ios::binary);
  std::string text(largest_file + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || !in.is_open()) {
    return tl::unexpected(
        error{{errno != 0 ? errno : EIO, std::generic_category()}, op, "a file cannot be read"});
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > largest_file) {
    return make_error(errc::invalid_argument, op, "the file is too large", text.size(),
                  largest_file);
  }
  return text;
}

std::string written(const auto &write) {
  const owned_bio out(BIO_new(BIO_s_mem()));
  if (out == nullptr || write(out.get()) != 1) return {};
  char *data = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(bytes)};
}

}  // namespace

error openssl_error(errc like, const char *operation, const char *otherwise) {
  const char *said = nullptr;
  for (unsigned long e = ERR_get_error(); e != 0; e = ERR_get_error()) {
    if (said == nullptr) said = ERR_reason_error_string(e);
  }
  return {make_error_code(like), operation, said != nullptr ? said : otherwise, 0, 0};
}

owned_bio reading(const std::string &pem) {
  return owned_bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string fingerprint_of(const X509 *certificate) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  if (certificate == nullptr || X509_digest(certificate, EVP_sha256(), hash, &bytes) != 1)
    return {};
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < bytes; ++i) {
    text += digits[hash[i] >> 4];
    text += digits[hash[i] & 15];
  }
  return text;
}

std::string common_name_of(const X509 *certificate) {
  char name[256] = "";
  if (certificate != nullptr) {
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                              sizeof name);
  }
  return name;
}

result<credentials> load_credentials(const std::string &certificate, const std::string &key,
                                     const std::string &authorities) {
  credentials out;
  for (const auto &[path, into] : {std::pair{&certificate, &out.certificate},
                                   {&key, &out.key},
                                   {&authorities, &out.authorities}}) {
    auto text = read_file(*path);
    if (!text) return tl::unexpected(text.error());
    *into = std::move(*text);
  }
  return out;
}

result<credentials> make_self_signed(const std::string &name, int days) {
  constexpr const char *op = "migration::make_self_signed";
  const owned_key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const owned_certificate made(X509_new());
  bool good = key != nullptr && made != nullptr && X509_set_version(made.get(), 2) == 1 &&
              ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1) == 1 &&
              X509_gmtime_adj(X509_getm_notBefore(made.get()), -300) != nullptr &&
              X509_gmtime_adj(X509_getm_notAfter(made.get()), 86400L * days) != nullptr &&
              X509_set_pubkey(made.get(), key.get()) == 1;
  if (good) {
    X509_NAME *const subject = X509_get_subject_name(made.get());
    good = X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char *>(name.data()),
                                      static_cast<int>(name.size()), -1, 0) == 1 &&
           X509_set_issuer_name(made.get(), subject) == 1 &&
           X509_sign(made.get(), key.get(), EVP_sha256()) != 0;
  }
  credentials out;
  if (good) {
    out.certificate = written([&](BIO *b) { return PEM_write_bio_X509(b, made.get()); });
    out.key = written([&](BIO *b) {
      return PEM_write_bio_PrivateKey(b, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
  if (out.certificate.empty() || out.key.empty()) {
    return tl::unexpected(
        openssl_error(errc::not_supported, op, "no certificate could be made"));
  }
  return out;
}

result<std::string> fingerprint_of(const credentials &c) {
  const owned_bio in = reading(c.certificate);
  const owned_certificate first(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
  if (first == nullptr) {
    return tl::unexpected(openssl_error(errc::invalid_argument, "migration::fingerprint_of",
                                        "there is no certificate"));
  }
  return fingerprint_of(first.get());
}

}  // namespace stillmap::migration
