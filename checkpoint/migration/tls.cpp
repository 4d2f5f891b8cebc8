#include "stillmap/checkpoint/migration/tls.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "stillmap/checkpoint/base/tcp_socket.h"
#include "stillmap/checkpoint/migration/internal/tls_context.h"
#include "stillmap/checkpoint/migration/internal/tls_socket.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

using checkpoint::tcp_listener;
using checkpoint::wait_for_socket;

tl::unexpected<error> system_error(const char *reason, int code) {
  return make_system_error(code, reason);
}

class tls_channel final : public channel {
 public:
  tls_channel(std::shared_ptr<const owned_context> context, fork_closed_fd socket, bool accepting,
              std::string address)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        accepting_(accepting),
        peer_{std::move(address), {}, {}} {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  status handshake(std::chrono::milliseconds timeout) override {
    return with_host_memory("migration::channel::handshake", [&]() -> status {
      STILLMAP_RETURN_IF_ERROR(create_ssl());
      const auto until = clock::now() + timeout;
      const auto do_handshake = [&](SSL *s) { return SSL_do_handshake(s); };
      STILLMAP_RETURN_IF_ERROR(call_ssl(do_handshake, until, errc::not_supported));
      const lock_guard lock(mutex_);
      SSL_set_msg_callback(ssl_.get(), nullptr);
      const owned_certificate theirs(SSL_get1_peer_certificate(ssl_.get()));
      peer_.name = common_name_of(theirs.get());
      peer_.fingerprint = migration::fingerprint_of(theirs.get());
      return {};
    });
  }

  // Bytes that have not been read may be a ClientHello.
  bool handshake_begun() const noexcept override {
    int unread = 0;
    return hello_received_ || (::ioctl(socket_.get(), FIONREAD, &unread) == 0 && unread > 0);
  }

  peer_identity peer() const override { return peer_; }

  status send(std::span<const std::byte> bytes, std::chrono::milliseconds timeout) override {
    const operation_scope scope("migration::channel::send");
    STILLMAP_RETURN_IF_ERROR(transfer(&SSL_write_ex, bytes, timeout));
    return flush(clock::now() + timeout);
  }

  status receive(std::span<std::byte> into, std::chrono::milliseconds timeout) override {
    const operation_scope scope("migration::channel::receive");
    return transfer(&SSL_read_ex, into, timeout);
  }

  void close_gracefully(std::chrono::milliseconds timeout) noexcept override {
    const auto until = clock::now() + timeout;
    ::shutdown(socket_.get(), SHUT_WR);
    std::array<std::byte, 4096> discarded;
    while (clock::now() < until && wait_for_socket(socket_.get(), POLLIN, until)) {
      const ssize_t n = ::recv(socket_.get(), discarded.data(), discarded.size(), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    }
  }

  void shutdown() noexcept override {
    // After shutdown() this end no longer announces free receive buffer, so a peer that waits for
    // some would not notice the end: a reset (linger 0) wakes it. With unsent data there is no
    // reset, which would discard that data.
    int unsent = 0;
    if (::ioctl(socket_.get(), SIOCOUTQ, &unsent) == 0 && unsent == 0) {
      const linger reset{1, 0};
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  status create_ssl() {
    const lock_guard lock(mutex_);
    ERR_clear_error();
    ssl_.reset(SSL_new(context_->get()));
    if (ssl_ == nullptr || !use_socket(ssl_.get(), socket_.get())) {
      return tl::unexpected(
          openssl_error(errc::not_supported, "OpenSSL cannot create a connection"));
    }
    SSL_set_read_ahead(ssl_.get(), 1);
    accepting_ ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
    SSL_set_msg_callback(ssl_.get(), &note_hello);
    SSL_set_msg_callback_arg(ssl_.get(), this);
    return {};
  }

  // Writes or reads all of `bytes`; each part may take as long as `timeout`.
  template <class Call, class Byte>
  status transfer(const Call &call, std::span<Byte> bytes, std::chrono::milliseconds timeout) {
    {
      const lock_guard lock(mutex_);
      if (ssl_ == nullptr) {
        return make_error(errc::invalid_argument, "the handshake has not succeeded");
      }
    }
    while (!bytes.empty()) {
      std::size_t done = 0;
      const auto some = [&](SSL *s) { return call(s, bytes.data(), bytes.size(), &done); };
      STILLMAP_RETURN_IF_ERROR(call_ssl(some, clock::now() + timeout, errc::corrupt));
      bytes = bytes.subspan(done);
    }
    return {};
  }

  // OpenSSL calls it with each whole message.
  static void note_hello(int sent, int, int type, const void *message, std::size_t bytes, SSL *,
                         void *channel) noexcept {
    if (sent != 0 || type != SSL3_RT_HANDSHAKE || bytes == 0) return;
    if (*static_cast<const unsigned char *>(message) != SSL3_MT_CLIENT_HELLO) return;
    static_cast<tls_channel *>(channel)->hello_received_ = true;
  }

  // Repeats a call to OpenSSL until it succeeds. The mutex is held only during calls, not while
  // waiting for the socket: one thread can send while another waits for data.
  template <class Call>
  status call_ssl(const Call &call, clock::time_point until, errc code_of_failure) {
    for (;;) {
      short what = 0;
      {
        const lock_guard lock(mutex_);
        ERR_clear_error();
        errno = 0;
        const int n = call(ssl_.get());
        if (n == 1) return {};
        const int code = errno;
        switch (SSL_get_error(ssl_.get(), n)) {
          case SSL_ERROR_WANT_READ:
            what = POLLIN;
            break;
          case SSL_ERROR_WANT_WRITE:
            what = POLLOUT;
            break;
          case SSL_ERROR_ZERO_RETURN:
            return system_error("the peer has closed the connection", ECONNRESET);
          case SSL_ERROR_SYSCALL:
            return system_error("the connection is broken", code != 0 ? code : ECONNRESET);
          default:
            // A peer that dies does not send TLS's closing alert.
            if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
              return system_error("the connection is broken", ECONNRESET);
            }
            return tl::unexpected(openssl_error(code_of_failure, "TLS failed"));
        }
      }
      STILLMAP_RETURN_IF_ERROR(wait_for_socket(socket_.get(), what, until));
    }
  }

  // Writes what OpenSSL has buffered to the socket.
  status flush(clock::time_point until) {
    for (;;) {
      {
        const lock_guard lock(mutex_);
        BIO *const out = SSL_get_wbio(ssl_.get());
        errno = 0;
        if (BIO_flush(out) > 0) return {};
        if (!BIO_should_retry(out)) {
          return system_error("the connection is broken", errno != 0 ? errno : ECONNRESET);
        }
      }
      STILLMAP_RETURN_IF_ERROR(wait_for_socket(socket_.get(), POLLOUT, until));
    }
  }

  std::shared_ptr<const owned_context> context_;
  fork_closed_fd socket_;
  const bool accepting_;
  std::atomic<bool> hello_received_{false};
  mutex mutex_;
  owned_ssl ssl_ STILLMAP_GUARDED_BY(mutex_);
  peer_identity peer_;
};

class tls_transport final : public transport {
 public:
  tls_transport(std::string address, owned_context context)
      : address_(std::move(address)),
        context_(std::make_shared<const owned_context>(std::move(context))) {}

  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::transport::connect", [&]() -> result<std::unique_ptr<channel>> {
          STILLMAP_ASSIGN_OR_RETURN(fork_closed_fd s,
                                    checkpoint::connect_tcp(address_, clock::now() + timeout));
          return std::make_unique<tls_channel>(context_, std::move(s), false, address_);
        });
  }

 private:
  const std::string address_;
  const std::shared_ptr<const owned_context> context_;
};

class tls_acceptor final : public acceptor {
 public:
  tls_acceptor(tcp_listener at, owned_context context)
      : at_(std::move(at)), context_(std::make_shared<const owned_context>(std::move(context))) {}

  result<std::unique_ptr<channel>> accept(std::chrono::milliseconds timeout) override {
    return with_host_memory("migration::acceptor::accept",
                            [&]() -> result<std::unique_ptr<channel>> {
                              STILLMAP_ASSIGN_OR_RETURN(auto c, at_.accept(clock::now() + timeout));
                              return std::make_unique<tls_channel>(context_, std::move(c.socket),
                                                                   true, std::move(c.from));
                            });
  }
  std::string address() const override { return at_.address(); }
  void shutdown() noexcept override { at_.shutdown(); }

 private:
  const tcp_listener at_;
  const std::shared_ptr<const owned_context> context_;
};

}  // namespace

result<std::unique_ptr<transport>> create_tls_transport(const std::string &address,
                                                        const credentials &c) {
  return with_host_memory(
      "migration::create_tls_transport", [&]() -> result<std::unique_ptr<transport>> {
        STILLMAP_ASSIGN_OR_RETURN(const auto to, checkpoint::parse_tcp_address(address));
        STILLMAP_ASSIGN_OR_RETURN(owned_context context, create_tls_context(c, &to.host));
        return std::make_unique<tls_transport>(address, std::move(context));
      });
}

result<std::unique_ptr<acceptor>> create_tls_acceptor(const std::string &address,
                                                      const credentials &c) {
  return with_host_memory(
      "migration::create_tls_acceptor", [&]() -> result<std::unique_ptr<acceptor>> {
        STILLMAP_RETURN_IF_ERROR(checkpoint::parse_tcp_address(address));
        STILLMAP_ASSIGN_OR_RETURN(owned_context context, create_tls_context(c, nullptr));
        STILLMAP_ASSIGN_OR_RETURN(tcp_listener at, tcp_listener::create(address));
        return std::make_unique<tls_acceptor>(std::move(at), std::move(context));
      });
}

}  // namespace stillmap::migration
