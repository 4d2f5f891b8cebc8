#include "stillmap/checkpoint/image/digest.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#define XXH_STATIC_LINKING_ONLY  // the state's size
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // the widest instructions that this machine has
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "stillmap/checkpoint/image/internal/random.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::image {
namespace {

// Read twice, the second time from the cache.
constexpr std::size_t piece_bytes = 16 << 10;

digest canonical(XXH128_hash_t h) {
  XXH128_canonical_t c;
  XXH128_canonicalFromHash(&c, h);
  digest d;
  static_assert(sizeof c == sizeof d.bytes);
  std::memcpy(d.bytes.data(), &c, sizeof c);
  return d;
}

// The Poly1305 of one message.
class poly1305 {
 public:
  static result<poly1305> create(const digest_key &key) {
    poly1305 out;
    STILLMAP_ASSIGN_OR_RETURN(out.context_, unused_contexts::all().take());
    if (EVP_MAC_init(out.context_.get(), raw(key.bytes.data()), key.bytes.size(), nullptr) != 1) {
      return failed();
    }
    return out;
  }
  ~poly1305() {
    if (context_) unused_contexts::all().give_back(std::move(context_));
  }
  poly1305(poly1305 &&) = default;
  poly1305 &operator=(poly1305 &&) = delete;

  status add(bytes_view bytes) {
    if (EVP_MAC_update(context_.get(), raw(bytes.data()), bytes.size()) != 1) return failed();
    return {};
  }
  result<digest> value() {
    digest d;
    std::size_t size = 0;
    auto *const to = reinterpret_cast<unsigned char *>(d.bytes.data());
    if (EVP_MAC_final(context_.get(), to, &size, d.bytes.size()) != 1 || size != d.bytes.size()) {
      return failed();
    }
    return d;
  }

 private:
  struct free_context {
    void operator()(EVP_MAC_CTX *c) const { EVP_MAC_CTX_free(c); }
  };
  using context_ptr = std::unique_ptr<EVP_MAC_CTX, free_context>;

  // Making a context takes as long as digesting a small chunk, so they are kept. Not one for each thread: the
  // destructor of a thread_local object needs the loader's lock and host memory when it is registered, and ends
  // the process where there is none.
  class unused_contexts {
   public:
    static unused_contexts &all() {
      static undying<unused_contexts> contexts;
      return *contexts;
    }
    result<context_ptr> take() {
      {
        const lock_guard lock(mutex_);
        for (context_ptr &c : kept_) {
          if (c) return std::move(c);
        }
      }
      return make();
    }
    void give_back(context_ptr context) {
      const lock_guard lock(mutex_);
      for (context_ptr &c : kept_) {
        if (c) continue;
        c = std::move(context);
        return;
      }
    }

   private:
    static result<context_ptr> make() {
      struct free_mac {
        void operator()(EVP_MAC *m) const { EVP_MAC_free(m); }
      };
      const std::unique_ptr<EVP_MAC, free_mac> mac(EVP_MAC_fetch(nullptr, "POLY1305", nullptr));
      if (!mac) return make_error(errc::not_supported, "this OpenSSL has no Poly1305");
      context_ptr context(EVP_MAC_CTX_new(mac.get()));
      if (!context) return host_out_of_memory();
      return context;
    }

    stillmap::mutex mutex_;
    std::array<context_ptr, 16> kept_ STILLMAP_GUARDED_BY(mutex_);
  };

  poly1305() = default;
  static const unsigned char *raw(const std::byte *p) {
    return reinterpret_cast<const unsigned char *>(p);
  }
  static tl::unexpected<error> failed() {
    return make_error(errc::not_supported, "OpenSSL failed to compute Poly1305");
  }

  context_ptr context_;
};

}  // namespace

digest digest_of(bytes_view bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

result<digest_key> make_digest_key() {
  const operation_scope scope("image::make_digest_key");
  digest_key key;
  STILLMAP_RETURN_IF_ERROR(fill_random(key.bytes));
  return key;
}

result<digest> digest_of_contents(const digest_key &key, bytes_view contents) {
  const operation_scope scope("image::digest_of_contents");
  STILLMAP_ASSIGN_OR_RETURN(poly1305 mac, poly1305::create(key));
  STILLMAP_RETURN_IF_ERROR(mac.add(contents));
  return mac.value();
}

result<both_digests> digests_of(const digest_key &key, bytes_view contents) {
  const operation_scope scope("image::digests_of");
  // Thread-local, because its alignment exceeds that of a sanitizer's stack.
  thread_local XXH3_state_t stored;
  STILLMAP_ASSIGN_OR_RETURN(poly1305 mac, poly1305::create(key));
  XXH3_128bits_reset(&stored);
  for (std::size_t at = 0; at < contents.size(); at += piece_bytes) {
    const bytes_view piece = contents.subspan(at, std::min(piece_bytes, contents.size() - at));
    STILLMAP_RETURN_IF_ERROR(mac.add(piece));
    XXH3_128bits_update(&stored, piece.data(), piece.size());
  }
  STILLMAP_ASSIGN_OR_RETURN(const digest of_contents, mac.value());
  return both_digests{of_contents, canonical(XXH3_128bits_digest(&stored))};
}

result<digest> digest_of_zeros(const digest_key &key, std::size_t bytes) {
  const operation_scope scope("image::digest_of_zeros");
  thread_local digest_key known_key;
  thread_local std::size_t known = 0;
  thread_local digest value;
  if (known == bytes && known_key == key && bytes != 0) return value;
  static constexpr std::array<std::byte, block_bytes> zeros{};
  STILLMAP_ASSIGN_OR_RETURN(poly1305 mac, poly1305::create(key));
  for (std::size_t left = bytes; left != 0;) {
    const std::size_t n = std::min(left, zeros.size());
    STILLMAP_RETURN_IF_ERROR(mac.add(bytes_view(zeros).first(n)));
    left -= n;
  }
  known = 0;
  STILLMAP_ASSIGN_OR_RETURN(value, mac.value());
  known_key = key;
  known = bytes;
  return value;
}

bool all_zero(bytes_view bytes) {
  // Most contents that are not zero show it in the first bytes.
  static constexpr std::array<std::byte, 64> zeros{};
  if (bytes.empty()) return true;
  const std::size_t head = std::min(bytes.size(), zeros.size());
  if (std::memcmp(bytes.data(), zeros.data(), head) != 0) return false;
  // The rest is zero if it equals itself shifted by the part known to be zero.
  return bytes.size() == head ||
         std::memcmp(bytes.data(), bytes.data() + head, bytes.size() - head) == 0;
}

sha256 sha256_of(bytes_view bytes) {
  sha256 value;
  SHA256(reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char *>(value.bytes.data()));
  return value;
}

}  // namespace stillmap::image
