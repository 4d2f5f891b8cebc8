#include "tools/stillmap/metrics/listen.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

constexpr int backlog = 16;

tl::unexpected<failure> cannot_listen(const std::string &where) {
  const int code = errno;
  return fail(code == EADDRINUSE ? exit_busy
              : code == EACCES   ? exit_refused
                                 : exit_failed,
              fmt::format("cannot listen at {}: {}", where, std::strerror(code)));
}

outcome<sockaddr_un> address_of_path(const std::string &path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.size() >= sizeof out.sun_path) {
    return fail(exit_usage, fmt::format("--socket {}: the path has {} characters, {} are possible",
                                        path, path.size(), sizeof out.sun_path - 1));
  }
  std::memcpy(out.sun_path, path.c_str(), path.size() + 1);
  return out;
}

// Nobody listens there any more. A busy process, and one with another kind of socket, lives.
bool is_left_behind(const sockaddr_un &at) {
  const owned_fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(probe.get(), reinterpret_cast<const sockaddr *>(&at), sizeof at) != 0 &&
         errno == ECONNREFUSED;
}

// What a dead process has left behind goes; nothing else does.
outcome<void> make_way(const std::string &path, const sockaddr_un &at) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) return {};
  if (!S_ISSOCK(there.st_mode)) {
    return fail(exit_busy, fmt::format("--socket {}: something else has this path", path));
  }
  if (!is_left_behind(at)) {
    return fail(exit_busy, fmt::format("--socket {}: a process listens there", path));
  }
  ::unlink(path.c_str());
  return {};
}

outcome<listening_socket> listen_at_path(const std::string &path) {
  STILLMAP_ASSIGN_OR_RETURN(const sockaddr_un at, address_of_path(path));
  STILLMAP_RETURN_IF_ERROR(make_way(path, at));
  listening_socket out{owned_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), path, path};
  const mode_t before = ::umask(0177);
  const int bound = ::bind(out.fd.get(), reinterpret_cast<const sockaddr *>(&at), sizeof at);
  ::umask(before);
  if (bound != 0 || ::listen(out.fd.get(), backlog) != 0) return cannot_listen(path);
  return out;
}

struct free_addresses {
  void operator()(addrinfo *a) const { ::freeaddrinfo(a); }
};
using addresses = std::unique_ptr<addrinfo, free_addresses>;

outcome<addresses> look_up(const std::string &text) {
  const std::size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool possible =
      !host.empty() && is_number(port) && port.size() <= 5 && std::stoi(port) <= 65535;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int code =
      possible ? ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) : EAI_NONAME;
  if (code == 0) return addresses(found);
  return fail(exit_usage,
              fmt::format("--listen {}: not an address and a port, as 127.0.0.1:9835: {}", text,
                          ::gai_strerror(code)));
}

int port_of(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(fd, reinterpret_cast<sockaddr *>(&at), &size) != 0) return 0;
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6 &>(at).sin6_port
                                        : reinterpret_cast<const sockaddr_in &>(at).sin_port);
}

outcome<listening_socket> listen_at_address(const std::string &text) {
  STILLMAP_ASSIGN_OR_RETURN(const addresses all, look_up(text));
  const addrinfo &a = *all;
  listening_socket out{owned_fd(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC, 0)), "", ""};
  const int yes = 1;
  // A server that ended a moment ago keeps its address no longer.
  (void)::setsockopt(out.fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(out.fd.get(), a.ai_addr, a.ai_addrlen) != 0 || ::listen(out.fd.get(), backlog) != 0)
    return cannot_listen(text);
  out.place =
      fmt::format("http://{}:{}/metrics", text.substr(0, text.rfind(':')), port_of(out.fd.get()));
  return out;
}

}  // namespace

outcome<listening_socket> listen_for_scrapes(const std::string &path, const std::string &address) {
  return path.empty() ? listen_at_address(address) : listen_at_path(path);
}

scrape_socket_path::~scrape_socket_path() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace stillmap::tool
