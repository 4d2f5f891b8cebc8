#include "stillmap/checkpoint/migration/tls.h"

#include <linux/sockios.h>
#include <netdb.h>
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

#include "stillmap/checkpoint/migration/internal/tls_context.h"
#include "stillmap/checkpoint/migration/internal/tls_socket.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

tl::unexpected<error> system_error(const char *reason, int code) {
  return make_system_error(code, reason);
}

struct endpoint {
  std::string host, port;
};
// Errors: invalid_argument.
result<endpoint> parse(const std::string &address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return tl::unexpected(
        make_error(errc::invalid_argument, "not an address: use HOST:PORT").value().about(address));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return endpoint{host, address.substr(colon + 1)};
}

using addresses = owned<addrinfo, ::freeaddrinfo>;

result<addresses> resolve_host(const endpoint &e, bool listening) {
  addrinfo want{};
  want.ai_family = AF_UNSPEC;
  want.ai_socktype = SOCK_STREAM;
  want.ai_flags = listening ? AI_PASSIVE : AI_ADDRCONFIG;
  addrinfo *first = nullptr;
  const int failed =
      ::getaddrinfo(e.host.empty() ? nullptr : e.host.c_str(), e.port.c_str(), &want, &first);
  if (failed != 0) {
    return tl::unexpected(
        make_error(errc::invalid_argument, ::gai_strerror(failed)).value().about(e.host));
  }
  return addresses(first);
}

// -1: none could be created, and errno says why.
fork_closed_fd create_socket(const addrinfo &of) {
  return fork_closed_fd::create(
      [&] { return ::socket(of.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

std::string to_text(const sockaddr *address, socklen_t bytes) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(address, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool six = address->sa_family == AF_INET6;
  return (six ? "[" : "") + std::string(host) + (six ? "]:" : ":") + port;
}

status wait_for(int fd, short what, clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd p{fd, what, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (n > 0) return {};
    if (n == 0) return make_error(errc::busy, "timed out: the peer is silent");
    if (errno != EINTR) return system_error("poll failed", errno);
  }
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
    while (clock::now() < until && wait_for(socket_.get(), POLLIN, until)) {
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
      STILLMAP_RETURN_IF_ERROR(wait_for(socket_.get(), what, until));
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
      STILLMAP_RETURN_IF_ERROR(wait_for(socket_.get(), POLLOUT, until));
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
  tls_transport(std::string address, endpoint to, owned_context context)
      : address_(std::move(address)),
        endpoint_(std::move(to)),
        context_(std::make_shared<const owned_context>(std::move(context))) {}

  result<std::unique_ptr<channel>> connect(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::transport::connect", [&]() -> result<std::unique_ptr<channel>> {
          STILLMAP_ASSIGN_OR_RETURN(const addresses found, resolve_host(endpoint_, false));
          const auto until = clock::now() + timeout;
          status last = system_error("the host has no address", EADDRNOTAVAIL);
          for (const addrinfo *a = found.get(); a != nullptr; a = a->ai_next) {
            fork_closed_fd s = create_socket(*a);
            if (s.get() < 0) {
              last = system_error("no socket could be created", errno);
              continue;
            }
            if (::connect(s.get(), a->ai_addr, a->ai_addrlen) != 0) {
              if (errno != EINPROGRESS) {
                last = system_error("connecting failed", errno);
                continue;
              }
              if (last = wait_for(s.get(), POLLOUT, until); !last) continue;
              int failed = 0;
              socklen_t bytes = sizeof failed;
              ::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &failed, &bytes);
              if (failed != 0) {
                last = system_error("connecting failed", failed);
                continue;
              }
            }
            return std::make_unique<tls_channel>(context_, std::move(s), false, address_);
          }
          return tl::unexpected(last.error().about(address_));
        });
  }

 private:
  const std::string address_;
  const endpoint endpoint_;
  const std::shared_ptr<const owned_context> context_;
};

class tls_acceptor final : public acceptor {
 public:
  tls_acceptor(fork_closed_fd socket, std::string address, owned_context context)
      : socket_(std::move(socket)),
        address_(std::move(address)),
        context_(std::make_shared<const owned_context>(std::move(context))) {}

  result<std::unique_ptr<channel>> accept(std::chrono::milliseconds timeout) override {
    return with_host_memory(
        "migration::acceptor::accept", [&]() -> result<std::unique_ptr<channel>> {
          const auto until = clock::now() + timeout;
          for (;;) {
            sockaddr_storage from{};
            socklen_t bytes = sizeof from;
            auto s = fork_closed_fd::create([&] {
              return ::accept4(socket_.get(), reinterpret_cast<sockaddr *>(&from), &bytes,
                               SOCK_CLOEXEC | SOCK_NONBLOCK);
            });
            if (s.get() >= 0) {
              return std::make_unique<tls_channel>(
                  context_, std::move(s), true,
                  to_text(reinterpret_cast<sockaddr *>(&from), bytes));
            }
            const int code = errno;
            if (code == EINVAL) return system_error("the acceptor was shut down", ECANCELED);
            if (code != EAGAIN && code != EINTR && code != ECONNABORTED) {
              return system_error("accepting failed", code);
            }
            STILLMAP_RETURN_IF_ERROR(wait_for(socket_.get(), POLLIN, until));
          }
        });
  }
  std::string address() const override { return address_; }
  void shutdown() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  fork_closed_fd socket_;
  const std::string address_;
  const std::shared_ptr<const owned_context> context_;
};

}  // namespace

result<std::unique_ptr<transport>> create_tls_transport(const std::string &address,
                                                        const credentials &c) {
  return with_host_memory(
      "migration::create_tls_transport", [&]() -> result<std::unique_ptr<transport>> {
        STILLMAP_ASSIGN_OR_RETURN(endpoint to, parse(address));
        STILLMAP_ASSIGN_OR_RETURN(owned_context context, create_tls_context(c, &to.host));
        return std::make_unique<tls_transport>(address, std::move(to), std::move(context));
      });
}

result<std::unique_ptr<acceptor>> create_tls_acceptor(const std::string &address,
                                                      const credentials &c) {
  return with_host_memory(
      "migration::create_tls_acceptor", [&]() -> result<std::unique_ptr<acceptor>> {
        STILLMAP_ASSIGN_OR_RETURN(const endpoint at, parse(address));
        STILLMAP_ASSIGN_OR_RETURN(owned_context context, create_tls_context(c, nullptr));
        STILLMAP_ASSIGN_OR_RETURN(const addresses found, resolve_host(at, true));
        const addrinfo *const a = found.get();
        fork_closed_fd s = create_socket(*a);
        const int on = 1;
        if (s.get() >= 0) ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (s.get() < 0 || ::bind(s.get(), a->ai_addr, a->ai_addrlen) != 0 ||
            ::listen(s.get(), SOMAXCONN) != 0) {
          return make_system_error(errno, "cannot listen", address);
        }
        sockaddr_storage bound{};
        socklen_t bytes = sizeof bound;
        ::getsockname(s.get(), reinterpret_cast<sockaddr *>(&bound), &bytes);
        return std::make_unique<tls_acceptor>(
            std::move(s), to_text(reinterpret_cast<sockaddr *>(&bound), bytes), std::move(context));
      });
}

}  // namespace stillmap::migration
