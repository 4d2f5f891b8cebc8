#include "stillmap/checkpoint/base/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

using steady = std::chrono::steady_clock;

struct free_addresses {
  void operator()(addrinfo *a) const noexcept { ::freeaddrinfo(a); }
};
using host_addresses = std::unique_ptr<addrinfo, free_addresses>;

result<host_addresses> resolve_host(const std::string &address, bool listening) {
  STILLMAP_ASSIGN_OR_RETURN(const tcp_address at, parse_tcp_address(address));
  addrinfo want{};
  want.ai_family = AF_UNSPEC;
  want.ai_socktype = SOCK_STREAM;
  want.ai_flags = listening ? AI_PASSIVE : AI_ADDRCONFIG;
  addrinfo *first = nullptr;
  const int failed =
      ::getaddrinfo(at.host.empty() ? nullptr : at.host.c_str(), at.port.c_str(), &want, &first);
  if (failed != 0) {
    return tl::unexpected(
        make_error(errc::invalid_argument, ::gai_strerror(failed)).value().about(address));
  }
  return host_addresses(first);
}

// -1: none could be created, and errno says why.
fork_closed_fd create_tcp_socket(const addrinfo &of) {
  return fork_closed_fd::create(
      [&] { return ::socket(of.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
}

std::string text_of(const sockaddr_storage &address, socklen_t bytes) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr *>(&address), bytes, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool six = address.ss_family == AF_INET6;
  return (six ? "[" : "") + std::string(host) + (six ? "]:" : ":") + port;
}

}  // namespace

result<tcp_address> parse_tcp_address(const std::string &address) {
  const operation_scope scope("checkpoint::parse_tcp_address");
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return tl::unexpected(
        make_error(errc::invalid_argument, "not an address: use HOST:PORT").value().about(address));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return tcp_address{std::move(host), address.substr(colon + 1)};
}

bool is_numeric(const tcp_address &address) noexcept {
  unsigned char parsed[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, address.host.c_str(), parsed) == 1 ||
         ::inet_pton(AF_INET6, address.host.c_str(), parsed) == 1;
}

result<fork_closed_fd> connect_tcp(const std::string &address, steady::time_point until) {
  const operation_scope scope("checkpoint::connect_tcp");
  STILLMAP_ASSIGN_OR_RETURN(const host_addresses found, resolve_host(address, false));
  status last = make_system_error(EADDRNOTAVAIL, "the host has no address");
  for (const addrinfo *a = found.get(); a != nullptr; a = a->ai_next) {
    fork_closed_fd s = create_tcp_socket(*a);
    if (s.get() < 0) {
      last = make_system_error(errno, "no socket could be created");
      continue;
    }
    int failed = ::connect(s.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (failed == EINPROGRESS) {
      if (last = wait_for_socket(s.get(), POLLOUT, until); !last) continue;
      socklen_t bytes = sizeof failed;
      ::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &failed, &bytes);
    }
    if (failed == 0) return s;
    last = make_system_error(failed, "connecting failed");
  }
  return tl::unexpected(last.error().about(address));
}

result<tcp_listener> tcp_listener::create(const std::string &address) {
  const operation_scope scope("tcp_listener::create");
  STILLMAP_ASSIGN_OR_RETURN(const host_addresses found, resolve_host(address, true));
  const addrinfo *const a = found.get();
  fork_closed_fd s = create_tcp_socket(*a);
  const int on = 1;
  if (s.get() >= 0) ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (s.get() < 0 || ::bind(s.get(), a->ai_addr, a->ai_addrlen) != 0 ||
      ::listen(s.get(), SOMAXCONN) != 0) {
    return make_system_error(errno, "cannot listen", address);
  }
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  ::getsockname(s.get(), reinterpret_cast<sockaddr *>(&bound), &bytes);
  return tcp_listener(std::move(s), text_of(bound, bytes));
}

result<tcp_listener::connection> tcp_listener::accept(steady::time_point until) const {
  const operation_scope scope("tcp_listener::accept");
  for (;;) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof from;
    auto s = fork_closed_fd::create([&] {
      return ::accept4(socket_.get(), reinterpret_cast<sockaddr *>(&from), &bytes,
                       SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (s.get() >= 0) return connection{std::move(s), text_of(from, bytes)};
    const int code = errno;
    if (code == EINVAL) return make_system_error(ECANCELED, "the acceptor was shut down");
    if (code != EAGAIN && code != EINTR && code != ECONNABORTED) {
      return make_system_error(code, "accepting failed");
    }
    STILLMAP_RETURN_IF_ERROR(wait_for_socket(socket_.get(), POLLIN, until));
  }
}

void tcp_listener::shutdown() const noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

status wait_for_socket(int socket, short events, steady::time_point until) {
  const operation_scope scope("checkpoint::wait_for_socket");
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - steady::now()).count();
    pollfd p{socket, events, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (n > 0) return {};
    if (n == 0) return make_error(errc::busy, "timed out: the peer is silent");
    if (errno != EINTR) return make_system_error(errno, "poll failed");
  }
}

status write_all(int socket, std::span<const std::byte> bytes, steady::time_point until) {
  const operation_scope scope("checkpoint::write_all");
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      STILLMAP_RETURN_IF_ERROR(wait_for_socket(socket, POLLOUT, until));
    } else if (errno != EINTR) {
      return make_system_error(errno, "the connection is broken");
    }
  }
  return {};
}

status read_all(int socket, std::span<std::byte> into, steady::time_point until) {
  const operation_scope scope("checkpoint::read_all");
  while (!into.empty()) {
    const ssize_t n = ::recv(socket, into.data(), into.size(), 0);
    if (n > 0) {
      into = into.subspan(static_cast<std::size_t>(n));
    } else if (n == 0) {
      return make_system_error(ECONNRESET, "the peer has closed the connection");
    } else if (errno == EAGAIN) {
      STILLMAP_RETURN_IF_ERROR(wait_for_socket(socket, POLLIN, until));
    } else if (errno != EINTR) {
      return make_system_error(errno, "the connection is broken");
    }
  }
  return {};
}

}  // namespace stillmap::checkpoint
