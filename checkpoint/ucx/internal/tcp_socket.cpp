#include "stillmap/checkpoint/ucx/internal/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "stillmap/vmm/base/try.h"

namespace stillmap::ucx {

status check_address(const std::string &address) {
  const std::size_t colon = address.rfind(':');
  if (colon != std::string::npos && colon + 1 != address.size()) return {};
  return tl::unexpected(
      make_error(errc::invalid_argument, "not an address: use HOST:PORT").value().about(address));
}

result<addresses> resolve(const std::string &address, bool listening) {
  STILLMAP_RETURN_IF_ERROR(check_address(address));
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo want{};
  want.ai_family = AF_UNSPEC;
  want.ai_socktype = SOCK_STREAM;
  want.ai_flags = listening ? AI_PASSIVE : AI_ADDRCONFIG;
  addrinfo *first = nullptr;
  const int failed =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &want, &first);
  if (failed != 0) {
    return tl::unexpected(
        make_error(errc::invalid_argument, ::gai_strerror(failed)).value().about(address));
  }
  return addresses(first);
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

result<fork_closed_fd> connect_to(const std::string &address, clock::time_point until) {
  STILLMAP_ASSIGN_OR_RETURN(const addresses found, resolve(address, false));
  status last = make_system_error(EADDRNOTAVAIL, "the host has no address");
  for (const addrinfo *a = found.get(); a != nullptr; a = a->ai_next) {
    auto s = fork_closed_fd::create(
        [&] { return ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
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

status wait_for_socket(int socket, short what, clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
    pollfd p{socket, what, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (n > 0) return {};
    if (n == 0) return make_error(errc::busy, "timed out: the peer is silent");
    if (errno != EINTR) return make_system_error(errno, "poll failed");
  }
}

status write_all(int socket, std::span<const std::byte> bytes, clock::time_point until) {
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

status read_all(int socket, std::span<std::byte> into, clock::time_point until) {
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

}  // namespace stillmap::ucx
