#include "stillmap/checkpoint/migration/credentials.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "stillmap/checkpoint/base/key_file.h"
#include "stillmap/checkpoint/migration/internal/openssl.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

constexpr std::size_t max_file_bytes = std::size_t{1} << 20;

result<std::string> read_file(const std::string &path, checkpoint::secrecy who) {
  if (path.empty()) return std::string();
  return checkpoint::read_key_file(path, max_file_bytes, who);
}

// The PEM text that write(BIO *) produces; empty on failure.
std::string pem_text(const auto &write) {
  const owned_bio out(BIO_new(BIO_s_mem()));
  if (out == nullptr || write(out.get()) != 1) return {};
  char *data = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(bytes)};
}

}  // namespace

result<credentials> load_credentials(const std::string &certificate, const std::string &key,
                                     const std::string &authorities) {
  return with_host_memory("migration::load_credentials", [&]() -> result<credentials> {
    credentials out;
    STILLMAP_ASSIGN_OR_RETURN(out.certificate,
                              read_file(certificate, checkpoint::secrecy::everybody));
    STILLMAP_ASSIGN_OR_RETURN(out.key, read_file(key, checkpoint::secrecy::owner));
    STILLMAP_ASSIGN_OR_RETURN(out.authorities,
                              read_file(authorities, checkpoint::secrecy::everybody));
    return out;
  });
}

result<credentials> make_self_signed(const std::string &name, int days) {
  return with_host_memory("migration::make_self_signed", [&]() -> result<credentials> {
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
      out.certificate = pem_text([&](BIO *b) { return PEM_write_bio_X509(b, made.get()); });
      out.key = pem_text([&](BIO *b) {
        return PEM_write_bio_PrivateKey(b, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
      });
    }
    if (out.certificate.empty() || out.key.empty()) {
      return tl::unexpected(
          openssl_error(errc::not_supported, "OpenSSL cannot create a certificate"));
    }
    return out;
  });
}

result<std::string> fingerprint_of(const credentials &c) {
  return with_host_memory("migration::fingerprint_of", [&]() -> result<std::string> {
    const owned_bio in = read_bio(c.certificate);
    const owned_certificate first(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (first == nullptr) {
      return tl::unexpected(openssl_error(errc::invalid_argument, "no certificate"));
    }
    return fingerprint_of(first.get());
  });
}

}  // namespace stillmap::migration
