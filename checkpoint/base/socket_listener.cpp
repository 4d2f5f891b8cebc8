#include "stillmap/checkpoint/base/socket_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "stillmap/checkpoint/base/internal/socket_path.h"
#include "stillmap/checkpoint/base/unix_socket.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

// Connections that wait to be accepted. Strangers can keep it full, so it is what a connection waits
// behind; connect() tries again where there is no room.
constexpr int max_backlog = 128;

}  // namespace

result<socket_listener> socket_listener::create(const std::string &address) {
  return with_host_memory("socket_listener::create", [&]() -> result<socket_listener> {
    STILLMAP_ASSIGN_OR_RETURN(const socket_address at, parse_address(address));
    const bool is_path = address.front() != '@';
    // Allocated before the path exists, so that it is unlinked after any failure.
    std::string path = is_path ? address : std::string();
    auto socket = std::make_unique<fork_closed_fd>(create_socket());
    if (socket->get() < 0) return make_system_error(errno, "a socket cannot be created");
    std::optional<path_lock> locked;
    if (is_path) {
      STILLMAP_ASSIGN_OR_RETURN(path_lock lock, path_lock::take(address));
      locked.emplace(std::move(lock));
    }
    const auto bind = [&] { return ::bind(socket->get(), at.get(), at.bytes) == 0 ? 0 : errno; };
    int code = bind();
    if (code == EADDRINUSE && is_path && remove_stale_socket(address)) code = bind();
    if (code == EADDRINUSE) {
      return tl::unexpected(make_error(errc::busy, "the address is in use").value().about(address));
    }
    if (code != 0) return make_system_error(code, "the socket cannot be bound", address);
    socket_listener out(std::move(socket), std::move(path));
    if (::listen(out.fd(), max_backlog) != 0) {
      return make_system_error(errno, "the socket cannot listen", address);
    }
    return out;
  });
}

socket_listener::socket_listener(std::unique_ptr<fork_closed_fd> s, std::string path) noexcept
    : socket_(std::move(s)), path_(std::move(path)) {
  struct stat st {};
  if (path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  device_ = st.st_dev;
  inode_ = st.st_ino;
}

socket_listener::socket_listener(socket_listener &&) noexcept = default;

// Somebody may have removed the name, and another process may have it now. While this socket listens,
// no process takes the name for a dead one's, and its inode is no other's. A forked child has no socket.
socket_listener::~socket_listener() {
  struct stat st {};
  if (fd() < 0 || path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  if (st.st_dev == device_ && st.st_ino == inode_) ::unlink(path_.c_str());
}

int socket_listener::fd() const noexcept {
  return socket_ != nullptr ? socket_->get() : -1;
}

result<std::list<socket_channel>> socket_listener::accept_now() {
  const operation_scope scope("socket_listener::accept_now");
  std::list<socket_channel> one;
  one.push_back(socket_channel(std::make_unique<fork_closed_fd>(), {}));
  fork_closed_fd &socket = *one.front().socket_;
  socket = fork_closed_fd::create(
      [&] { return ::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (socket.get() >= 0) {
    STILLMAP_RETURN_IF_ERROR(one.front().identify_peer());
    return one;
  }
  if (may_call_again() || errno == ECONNABORTED) return std::list<socket_channel>();
  return make_system_error(errno, "a connection cannot be accepted");
}

result<socket_channel> socket_listener::accept(std::chrono::milliseconds timeout,
                                               std::stop_token cancel) {
  return with_host_memory("socket_listener::accept", [&]() -> result<socket_channel> {
    for (;;) {
      STILLMAP_ASSIGN_OR_RETURN(auto one, accept_now());
      if (!one.empty()) return std::move(one.front());
      pollfd p{fd(), POLLIN, 0};
      STILLMAP_RETURN_IF_ERROR(wait_for({&p, 1}, timeout, cancel));
    }
  });
}

}  // namespace stillmap::checkpoint
