#include "stillmap/checkpoint/image/internal/seal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <memory>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/image/internal/random.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T *p) const {
    Free(p);
  }
};
using pkey = std::unique_ptr<EVP_PKEY, freed_by<EVP_PKEY_free>>;
using digest_context = std::unique_ptr<EVP_MD_CTX, freed_by<EVP_MD_CTX_free>>;
using cipher_context = std::unique_ptr<EVP_CIPHER_CTX, freed_by<EVP_CIPHER_CTX_free>>;

unsigned char *raw(std::byte *p) {
  return reinterpret_cast<unsigned char *>(p);
}
const unsigned char *raw(const std::byte *p) {
  return reinterpret_cast<const unsigned char *>(p);
}

tl::unexpected<error> invalid(const char *reason) {
  return make_error(errc::invalid_argument, reason);
}

pkey private_key(const signing_key &key) {
  return pkey(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, raw(key.bytes.data()),
                                           key.bytes.size()));
}

// The nonce, and the additional data that binds a part to its image and position.
struct bound {
  std::array<std::byte, 12> iv{};
  std::array<std::byte, 28> also{};
  bound(nonce n, const image_id &image) {
    store(iv, 0, n.low);
    store(iv, 8, n.high);
    store(also, 0, image.bytes);
    store(also, 16, iv);
  }
};

}  // namespace

result<secret_key> make_secret_key() {
  const operation_scope scope("image::make_secret_key");
  secret_key key;
  STILLMAP_RETURN_IF_ERROR(fill_random(key.bytes));
  return key;
}

result<signing_key> make_signing_key() {
  const operation_scope scope("image::make_signing_key");
  signing_key key;
  STILLMAP_RETURN_IF_ERROR(fill_random(key.bytes));
  return key;
}

result<verifying_key> verifying_key_of(const signing_key &key) {
  const operation_scope scope("image::verifying_key_of");
  const pkey k = private_key(key);
  verifying_key half;
  std::size_t size = half.bytes.size();
  if (!k || EVP_PKEY_get_raw_public_key(k.get(), raw(half.bytes.data()), &size) != 1 ||
      size != half.bytes.size()) {
    return invalid("not a valid key");
  }
  return half;
}

result<signature> sign(const signing_key &key, const sha256 &root) {
  const pkey k = private_key(key);
  const digest_context context(EVP_MD_CTX_new());
  signature s;
  std::size_t size = s.bytes.size();
  if (!k || !context ||
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, k.get()) != 1 ||
      EVP_DigestSign(context.get(), raw(s.bytes.data()), &size, raw(root.bytes.data()),
                     root.bytes.size()) != 1 ||
      size != s.bytes.size()) {
    return invalid("not a valid key");
  }
  return s;
}

bool is_signature(const signature &s, const verifying_key &key, const sha256 &root) {
  const pkey k(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw(key.bytes.data()),
                                           key.bytes.size()));
  const digest_context context(EVP_MD_CTX_new());
  return k && context &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, k.get()) == 1 &&
         EVP_DigestVerify(context.get(), raw(s.bytes.data()), s.bytes.size(),
                          raw(root.bytes.data()), root.bytes.size()) == 1;
}

result<cipher> cipher::create(const secret_key &key, const image_id &image) {
  constexpr std::string_view info = "stillmap image 1";
  cipher c;
  c.image_ = image;
  const std::unique_ptr<EVP_KDF, freed_by<EVP_KDF_free>> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, freed_by<EVP_KDF_CTX_free>> context(
      kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr);
  char hash[] = "SHA256";
  secret_key secret = key;
  image_id salt = image;
  std::array<char, info.size()> label{};
  info.copy(label.data(), label.size());
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret.bytes.data(),
                                        secret.bytes.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.bytes.data(), salt.bytes.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
      OSSL_PARAM_construct_end(),
  };
  if (!context ||
      EVP_KDF_derive(context.get(), raw(c.key_.bytes.data()), c.key_.bytes.size(), params) != 1) {
    return make_error(errc::not_supported, "this OpenSSL has no HKDF");
  }
  return c;
}

status cipher::encrypt(nonce n, bytes_view from, std::span<std::byte> to) const {
  if (run(true, n, from, to.first(from.size()), to.last(tag_bytes))) return {};
  return make_error(errc::not_supported, "OpenSSL failed to encrypt");
}

status cipher::decrypt(nonce n, bytes_view from, std::span<std::byte> to) const {
  std::array<std::byte, tag_bytes> tag;
  std::memcpy(tag.data(), from.data() + to.size(), tag.size());
  if (run(false, n, from.first(to.size()), to, tag)) return {};
  return make_error(errc::corrupt, "encrypted with another key, or damaged");
}

result<cipher::authentication> cipher::authenticate(nonce n, bytes_view bytes) const {
  std::vector<std::byte> room(bytes.size() + tag_bytes);
  STILLMAP_RETURN_IF_ERROR(encrypt(n, bytes, room));
  authentication made;
  std::memcpy(made.bytes.data(), room.data() + bytes.size(), tag_bytes);
  return made;
}

status cipher::check_authentic(nonce n, bytes_view bytes, const authentication &found) const {
  STILLMAP_ASSIGN_OR_RETURN(const authentication made, authenticate(n, bytes));
  if (CRYPTO_memcmp(made.bytes.data(), found.bytes.data(), tag_bytes) == 0) return {};
  return make_error(errc::corrupt, "encrypted with another key, or damaged");
}

bool cipher::run(bool encrypt, nonce n, bytes_view from, std::span<std::byte> to,
                 std::span<std::byte> tag) const {
  const bound b(n, image_);
  const cipher_context c(EVP_CIPHER_CTX_new());
  const auto call_tag = [&](int what) {
    return EVP_CIPHER_CTX_ctrl(c.get(), what, tag_bytes, tag.data()) == 1;
  };
  int wrote = 0;
  return c &&
         EVP_CipherInit_ex(c.get(), EVP_aes_256_gcm(), nullptr, raw(key_.bytes.data()),
                           raw(b.iv.data()), encrypt ? 1 : 0) == 1 &&
         EVP_CipherUpdate(c.get(), nullptr, &wrote, raw(b.also.data()),
                          static_cast<int>(b.also.size())) == 1 &&
         EVP_CipherUpdate(c.get(), raw(to.data()), &wrote, raw(from.data()),
                          static_cast<int>(from.size())) == 1 &&
         (encrypt || call_tag(EVP_CTRL_GCM_SET_TAG)) &&
         EVP_CipherFinal_ex(c.get(), raw(tag.data()), &wrote) == 1 &&
         (!encrypt || call_tag(EVP_CTRL_GCM_GET_TAG));
}

}  // namespace stillmap::image
