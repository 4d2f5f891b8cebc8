// Encryption and signatures of images, with OpenSSL. docs/image_format.md#encryption
#pragma once

#include <span>

#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/checkpoint/image/keys.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

using signature = checkpoint::fixed_bytes<64, struct signature_tag>;

// Errors: invalid_argument (not a valid key).
result<signature> sign(const signing_key &key, const sha256 &root);
bool is_signature(const signature &s, const verifying_key &key, const sha256 &root);

// The AES-GCM nonce of a part: each is used once with an image's key.
struct nonce {
  std::uint64_t low = 0;
  std::uint32_t high = 0;  // 0: the extent of record `low`
};
inline constexpr nonce nonce_of_table{0, 1}, nonce_of_manifest{1, 1}, nonce_of_seals{2, 1},
    nonce_of_superblock{3, 1};

// AES-256-GCM with the key of one image.
// Threads: safe.
class cipher {
 public:
  static result<cipher> create(const secret_key &key, const image_id &image);

  // Requires: to.size() == from.size() + tag_bytes; `to` may begin where `from` does.
  status encrypt(nonce n, bytes_view from, std::span<std::byte> to) const;
  // Requires: from.size() == to.size() + tag_bytes; `to` may begin where `from` does.
  // Errors: corrupt (another key, or changed bytes); `to` is then unspecified.
  status decrypt(nonce n, bytes_view from, std::span<std::byte> to) const;
  // The tag of bytes that stay readable: that of encrypting them.
  using authentication = decltype(superblock::authentication);
  result<authentication> authenticate(nonce n, bytes_view bytes) const;
  // Errors: corrupt (another key, or changed bytes).
  status check_authentic(nonce n, bytes_view bytes, const authentication &found) const;

 private:
  // Encrypts and sets `tag`, or decrypts and checks it. False: OpenSSL failed, or the tag differs.
  bool run(bool encrypt, nonce n, bytes_view from, std::span<std::byte> to,
           std::span<std::byte> tag) const;

  checkpoint::fixed_bytes<32, struct derived_key_tag> key_;
  image_id image_;
};

}  // namespace stillmap::image
