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
#include <cerrno>
#include <mutex>

#include "stillmap/checkpoint/migration/internal/openssl.h"
#include "stillmap/checkpoint/migration/internal/tls_socket.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::migration {
namespace {

using clock = std::chrono::steady_clock;

constexpr const char *op = "migration::channel";

tl::unexpected<error> system_error(const char *what, int code) {
  return tl::unexpected(error{{code, std::generic_category()}, op, what});
}

// Host and port. Errors: invalid_argument.
struct place {
  std::string host, port;
};
result<place> parse(const std::string &where) {
  const std::size_t colon = where.rfind(':');
  if (colon == std::string::npos || colon + 1 == where.size()) {
    return make_error(errc::invalid_argument, "migration::tls", "no place: want HOST:PORT");
  }
  std::string host = where.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return place{host, where.substr(colon + 1)};
}

struct addresses {
  addrinfo *first = nullptr;
  addresses() = default;
  addresses(const addresses &) = delete;
  ~addresses() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};
status look_up(const place &p, bool listening, addresses &into) {
  addrinfo want{};
  want.ai_family = AF_UNSPEC;
  want.ai_socktype = SOCK_STREAM;
  want.ai_flags = listening ? AI_PASSIVE : AI_ADDRCONFIG;
  const int failed =
      ::getaddrinfo(p.host.empty() ? nullptr : p.host.c_str(), p.port.c_str(), &want, &into.first);
  if (failed != 0) {
    return make_error(errc::invalid_argument, "migration::tls", ::gai_strerror(failed));
  }
  return {};
}

std::string text_of(const sockaddr *address, socklen_t bytes) {
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
    const auto left = std::chrono::duration_cast<patience>(until - clock::now()).count();
    pollfd p{fd, what, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (n > 0) return {};
    if (n == 0) return make_error(errc::busy, op, "the other side is silent");
    if (errno != EINTR) return system_error("waiting failed", errno);
  }
}

class tls_channel final : public channel {
 public:
  // `context` has to outlive it.
  tls_channel(std::shared_ptr<const owned_context> context, owned_fd socket, bool accepting,
              std::string where)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        accepting_(accepting),
        where_(std::move(where)) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  status open(patience wait) override {
    ERR_clear_error();
    ssl_.reset(SSL_new(context_->get()));
    if (ssl_ == nullptr || !use_socket(ssl_.get(), socket_.get())) {
      return tl::unexpected(openssl_error(errc::not_supported, op, "no TLS to be had"));
    }
    SSL_set_read_ahead(ssl_.get(), 1);
    accepting_ ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
    const auto until = clock::now() + wait;
    const auto handshake = [&](SSL *s) { return SSL_do_handshake(s); };
    if (status s = once(handshake, until, errc::not_supported); !s) return s;
    const owned_certificate theirs(SSL_get1_peer_certificate(ssl_.get()));
    who_ = {where_, common_name_of(theirs.get()), migration::fingerprint_of(theirs.get())};
    return {};
  }

  peer who() const override { return who_; }

  status send(std::span<const std::byte> bytes, patience wait) override {
    if (ssl_ == nullptr) return make_error(errc::invalid_argument, op, "it is not open");
    while (!bytes.empty()) {
      std::size_t done = 0;
      const auto wrote = [&](SSL *s) { return SSL_write_ex(s, bytes.data(), bytes.size(), &done); };
      if (status s = once(wrote, clock::now() + wait, errc::corrupt); !s) return s;
      bytes = bytes.subspan(done);
    }
    return flush(clock::now() + wait);
  }

  status receive(std::span<std::byte> into, patience wait) override {
    if (ssl_ == nullptr) return make_error(errc::invalid_argument, op, "it is not open");
    while (!into.empty()) {
      std::size_t done = 0;
      const auto read = [&](SSL *s) { return SSL_read_ex(s, into.data(), into.size(), &done); };
      if (status s = once(read, clock::now() + wait, errc::corrupt); !s) return s;
      into = into.subspan(done);
    }
    return {};
  }

  void cut() noexcept override {
    // Who reads on after shutdown() tells the other side of no room any more, and where that waits
    // for room it would not hear of the end either: it is told by a reset. Not where a reset could
    // overtake what was sent before.
    int underway = 0;
    if (::ioctl(socket_.get(), SIOCOUTQ, &underway) == 0 && underway == 0) {
      const linger at_once{1, 0};
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  // A call of OpenSSL until it succeeds. Only calls exclude each other, not what waits: one thread
  // sends while another waits for something to come.
  template <class Call>
  status once(const Call &call, clock::time_point until, errc otherwise) {
    for (;;) {
      short what = 0;
      {
        const std::lock_guard lock(mutex_);
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
            return system_error("the other side has closed the link", ECONNRESET);
          case SSL_ERROR_SYSCALL:
            return system_error("the link is cut", code != 0 ? code : ECONNRESET);
          default:
            // TLS 1.3 has no proper end where somebody just dies.
            if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
              return system_error("the link is cut", ECONNRESET);
            }
            return tl::unexpected(openssl_error(otherwise, op, "TLS fails"));
        }
      }
      if (status s = wait_for(socket_.get(), what, until); !s) return s;
    }
  }

  // What OpenSSL has written goes.
  status flush(clock::time_point until) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        BIO *const out = SSL_get_wbio(ssl_.get());
        errno = 0;
        if (BIO_flush(out) > 0) return {};
        if (!BIO_should_retry(out)) {
          return system_error("the link is cut", errno != 0 ? errno : ECONNRESET);
        }
      }
      if (status s = wait_for(socket_.get(), POLLOUT, until); !s) return s;
    }
  }

  std::shared_ptr<const owned_context> context_;
  owned_fd socket_;
  const bool accepting_;
  const std::string where_;
  std::mutex mutex_;  // of ssl_, once it is open
  owned_ssl ssl_;
  peer who_;
};

class tls_transport final : public transport {
 public:
  tls_transport(std::string where, place p, owned_context context)
      : where_(std::move(where)),
        place_(std::move(p)),
        context_(std::make_shared<const owned_context>(std::move(context))) {}

  result<std::unique_ptr<channel>> connect(patience wait) override {
    addresses found;
    if (status s = look_up(place_, false, found); !s) return tl::unexpected(s.error());
    const auto until = clock::now() + wait;
    status last = system_error("there is no address", EADDRNOTAVAIL);
    for (const addrinfo *a = found.first; a != nullptr; a = a->ai_next) {
      owned_fd s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (s.get() < 0) {
        last = system_error("no socket to be had", errno);
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
      return std::make_unique<tls_channel>(context_, std::move(s), false, where_);
    }
    return tl::unexpected(last.error());
  }

 private:
  const std::string where_;
  const place place_;
  const std::shared_ptr<const owned_context> context_;
};

class tls_acceptor final : public acceptor {
 public:
  tls_acceptor(owned_fd socket, std::string where, owned_context context)
      : socket_(std::move(socket)),
        where_(std::move(where)),
        context_(std::make_shared<const owned_context>(std::move(context))) {}

  result<std::unique_ptr<channel>> accept(patience wait) override {
    const auto until = clock::now() + wait;
    for (;;) {
      sockaddr_storage from{};
      socklen_t bytes = sizeof from;
      owned_fd s(::accept4(socket_.get(), reinterpret_cast<sockaddr *>(&from), &bytes,
                           SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (s.get() >= 0) {
        return std::make_unique<tls_channel>(context_, std::move(s), true,
                                             text_of(reinterpret_cast<sockaddr *>(&from), bytes));
      }
      const int code = errno;
      if (code == EINVAL) return system_error("it was cut", ECANCELED);  // by shutdown
      if (code != EAGAIN && code != EINTR && code != ECONNABORTED) {
        return system_error("accepting failed", code);
      }
      if (status w = wait_for(socket_.get(), POLLIN, until); !w) return tl::unexpected(w.error());
    }
  }
  std::string where() const override { return where_; }
  void cut() noexcept override { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  owned_fd socket_;
  const std::string where_;
  const std::shared_ptr<const owned_context> context_;
};

}  // namespace

result<std::unique_ptr<transport>> tls_to(const std::string &where, const credentials &c) {
  auto at = parse(where);
  if (!at) return tl::unexpected(at.error());
  auto context = make_context(c, false);
  if (!context) return tl::unexpected(context.error());
  return std::make_unique<tls_transport>(where, std::move(*at), std::move(*context));
}

result<std::unique_ptr<acceptor>> tls_at(const std::string &where, const credentials &c) {
  auto at = parse(where);
  if (!at) return tl::unexpected(at.error());
  auto context = make_context(c, true);
  if (!context) return tl::unexpected(context.error());
  addresses found;
  if (status s = look_up(*at, true, found); !s) return tl::unexpected(s.error());
  const addrinfo *const a = found.first;
  owned_fd s(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (s.get() >= 0) ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (s.get() < 0 || ::bind(s.get(), a->ai_addr, a->ai_addrlen) != 0 ||
      ::listen(s.get(), 64) != 0) {
    return system_error("listening failed", errno);
  }
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  ::getsockname(s.get(), reinterpret_cast<sockaddr *>(&bound), &bytes);
  return std::make_unique<tls_acceptor>(
      std::move(s), text_of(reinterpret_cast<sockaddr *>(&bound), bytes), std::move(*context));
}

}  // namespace stillmap::migration
