#include "stillmap/checkpoint/migration/internal/tls_socket.h"

#include <openssl/bio.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

namespace stillmap::migration {
namespace {

int socket_of(BIO *b) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(b)));
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int read_some(BIO *b, char *into, std::size_t bytes, std::size_t *done) {
  BIO_clear_retry_flags(b);
  const ssize_t n = ::recv(socket_of(b), into, bytes, 0);
  if (n > 0) {
    *done = static_cast<std::size_t>(n);
    return 1;
  }
  if (n < 0 && would_block()) BIO_set_retry_read(b);
  if (n == 0) BIO_set_flags(b, BIO_FLAGS_IN_EOF);
  return n == 0 ? 0 : -1;
}

int write_some(BIO *b, const char *from, std::size_t bytes, std::size_t *done) {
  BIO_clear_retry_flags(b);
  const ssize_t n = ::send(socket_of(b), from, bytes, MSG_NOSIGNAL);
  if (n >= 0) {
    *done = static_cast<std::size_t>(n);
    return 1;
  }
  if (would_block()) BIO_set_retry_write(b);
  return -1;
}

long control_bio(BIO *b, int what, long, void *) {
  if (what == BIO_CTRL_EOF) return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return what == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD *socket_method() {
  static const BIO_METHOD *const made = [] {
    BIO_METHOD *const m =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (m != nullptr) {
      BIO_meth_set_read_ex(m, &read_some);
      BIO_meth_set_write_ex(m, &write_some);
      BIO_meth_set_ctrl(m, &control_bio);
    }
    return m;
  }();
  return made;
}

}  // namespace

bool use_socket(SSL *ssl, int socket) {
  const BIO_METHOD *const method = socket_method();
  owned_bio socket_bio(method != nullptr ? BIO_new(method) : nullptr),
      buffer(BIO_new(BIO_f_buffer()));
  if (socket_bio == nullptr || buffer == nullptr ||
      BIO_set_write_buffer_size(buffer.get(), static_cast<long>(socket_buffer_bytes)) != 1 ||
      BIO_up_ref(socket_bio.get()) != 1) {
    return false;
  }
  BIO_set_data(socket_bio.get(), reinterpret_cast<void *>(static_cast<std::intptr_t>(socket)));
  BIO_set_init(socket_bio.get(), 1);
  BIO_push(buffer.get(), socket_bio.get());  // takes one of the two references
  SSL_set_bio(ssl, socket_bio.release(), buffer.release());
  return true;
}

}  // namespace stillmap::migration
