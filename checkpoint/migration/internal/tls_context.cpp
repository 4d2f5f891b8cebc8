#include "stillmap/checkpoint/migration/internal/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cctype>

#include "stillmap/checkpoint/migration/internal/tls_socket.h"

namespace stillmap::migration {
namespace {

tl::unexpected<error> invalid(const char *reason) {
  return tl::unexpected(openssl_error(errc::invalid_argument, reason));
}

// A certificate with a trusted fingerprint is accepted whoever issued it; OpenSSL verifies the
// others.
int verify_peer(X509_STORE_CTX *chain, void *fingerprints) noexcept {
  const auto &trusted = *static_cast<const std::vector<std::string> *>(fingerprints);
  // Without allocating: OpenSSL cannot pass on an exception.
  const fingerprint_text seen(X509_STORE_CTX_get0_cert(chain));
  if (!seen.empty() && std::find(trusted.begin(), trusted.end(), seen.text()) != trusted.end()) {
    X509_STORE_CTX_set_error(chain, X509_V_OK);
    return 1;
  }
  return X509_verify_cert(chain) > 0 ? 1 : 0;
}

// "AB:CD" as "abcd".
std::string normalized(const std::string &fingerprint) {
  std::string out;
  for (const char c : fingerprint) {
    if (c != ':') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

void free_fingerprints(void *, void *fingerprints, CRYPTO_EX_DATA *, int, long, void *) {
  delete static_cast<std::vector<std::string> *>(fingerprints);
}

int fingerprints_index() {
  static const int index =
      SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, &free_fingerprints);
  return index;
}

bool load_chain(SSL_CTX *into, const std::string &pem) {
  const owned_bio in = read_bio(pem);
  const owned_certificate first(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
  if (first == nullptr || SSL_CTX_use_certificate(into, first.get()) != 1) return false;
  for (;;) {
    owned_certificate next(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    if (SSL_CTX_add0_chain_cert(into, next.get()) != 1) return false;
    next.release();  // the context owns it
  }
  ERR_clear_error();  // set by the end of the text
  return true;
}

bool load_authorities(SSL_CTX *into, const std::string &pem) {
  const owned_bio in = read_bio(pem);
  X509_STORE *const store = SSL_CTX_get_cert_store(into);
  int n = 0;
  for (;; ++n) {
    const owned_certificate next(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    if (X509_STORE_add_cert(store, next.get()) != 1) return false;
  }
  ERR_clear_error();
  return n != 0;
}

}  // namespace

result<owned_context> create_tls_context(const credentials &c, const std::string *host) {
  const bool listening = host == nullptr;
  ERR_clear_error();
  owned_context out(SSL_CTX_new(listening ? TLS_server_method() : TLS_client_method()));
  if (out == nullptr) return invalid("OpenSSL cannot create a context");
  SSL_CTX_set_min_proto_version(out.get(), TLS1_3_VERSION);
  // AES-128 first: it is the fastest in hardware, and strong enough.
  SSL_CTX_set_ciphersuites(out.get(),
                           "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                           "TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_num_tickets(out.get(), 0);
  SSL_CTX_set_session_cache_mode(out.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_default_read_buffer_len(out.get(), socket_buffer_bytes);
  SSL_CTX_set_mode(out.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (!load_chain(out.get(), c.certificate)) return invalid("no certificate of our own");
  const owned_bio in = read_bio(c.key);
  const owned_key key(PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr));
  if (key == nullptr || SSL_CTX_use_PrivateKey(out.get(), key.get()) != 1 ||
      SSL_CTX_check_private_key(out.get()) != 1) {
    return invalid("no private key that matches our certificate");
  }
  if (c.authorities.empty() && c.fingerprints.empty()) {
    return invalid("no peer is trusted: neither an authority nor a fingerprint is given");
  }
  if (!c.authorities.empty() && !load_authorities(out.get(), c.authorities)) {
    return invalid("no certificate of an authority");
  }
  const std::string &name = c.name.empty() && host != nullptr ? *host : c.name;
  if (!c.authorities.empty() && name.empty()) {
    return invalid(
        "an authority is trusted, and the peer's name is not given: every holder of one "
        "of its certificates would be let in. Give the name, or \"*\" for any");
  }
  if (!c.authorities.empty() && name != "*") {
    X509_VERIFY_PARAM *const param = SSL_CTX_get0_param(out.get());
    if (X509_VERIFY_PARAM_set1_ip_asc(param, name.c_str()) != 1 &&
        X509_VERIFY_PARAM_set1_host(param, name.data(), name.size()) != 1) {
      return invalid("the peer's name is neither a DNS name nor an IP address");
    }
    ERR_clear_error();  // set by the attempt to parse a DNS name as an address
  }
  auto fingerprints = std::make_unique<std::vector<std::string>>();
  for (const std::string &f : c.fingerprints) fingerprints->push_back(normalized(f));
  SSL_CTX_set_cert_verify_callback(out.get(), &verify_peer, fingerprints.get());
  if (SSL_CTX_set_ex_data(out.get(), fingerprints_index(), fingerprints.get()) != 1) {
    return invalid("out of memory");
  }
  fingerprints.release();  // free_fingerprints() frees it with the context
  SSL_CTX_set_verify(out.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return out;
}

}  // namespace stillmap::migration
