#include "stillmap/checkpoint/handoff/listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/handoff/internal/socket_path.h"
#include "stillmap/checkpoint/handoff/internal/unix_socket.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::handoff {
namespace {

constexpr const char *listener_op = "handoff::connection";
constexpr std::size_t max_hello_bytes = 64;
// Connections that wait to be accepted. Strangers can keep it full, so it is what a connection waits
// behind; connect() tries again where there is no room.
constexpr int max_backlog = 128;

bool is_hello(const message &m) {
  return m.kind == static_cast<std::uint16_t>(kind::hello) && m.fds.empty() &&
         decode_hello(m.body).has_value();
}

// Best effort: the stranger is disconnected in any case.
void refuse(connection &stranger, const error &why) noexcept {
  (void)with_host_memory(listener_op, [&] {
    return stranger.send(static_cast<std::uint16_t>(kind::error), checkpoint::encode(why), {},
                         std::chrono::milliseconds(0), {});
  });
}

}  // namespace

result<listener> listener::create(const std::string &address) {
  return with_host_memory(listener_op, [&]() -> result<listener> {
    STILLMAP_ASSIGN_OR_RETURN(const socket_address at, parse_address(address));
    const bool is_path = address.front() != '@';
    // Allocated before the path exists, so that it is unlinked after any failure.
    std::string path = is_path ? address : std::string();
    auto socket = std::make_unique<fork_closed_fd>(create_socket());
    if (socket->get() < 0)
      return make_system_error(errno, listener_op, "a socket cannot be created");
    std::optional<path_lock> locked;
    if (is_path) {
      STILLMAP_ASSIGN_OR_RETURN(path_lock lock, path_lock::take(address));
      locked.emplace(std::move(lock));
    }
    const auto bind = [&] { return ::bind(socket->get(), at.get(), at.bytes) == 0 ? 0 : errno; };
    int code = bind();
    if (code == EADDRINUSE && is_path && remove_stale_socket(address)) code = bind();
    if (code == EADDRINUSE) {
      const error e{make_error_code(errc::busy), listener_op, "the address is in use"};
      return tl::unexpected(e.about(address));
    }
    if (code != 0)
      return make_system_error(code, listener_op, "the socket cannot be bound", address);
    listener out(std::move(socket), std::move(path));
    if (::listen(out.fd(), max_backlog) != 0) {
      return make_system_error(errno, listener_op, "the socket cannot listen", address);
    }
    return out;
  });
}

listener::listener(std::unique_ptr<fork_closed_fd> s, std::string path) noexcept
    : socket_(std::move(s)), path_(std::move(path)) {
  struct stat st {};
  if (path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  device_ = st.st_dev;
  inode_ = st.st_ino;
}

listener::listener(listener &&) noexcept = default;

// Somebody may have removed the name, and another process may have it now. While this socket listens,
// no process takes the name for a dead one's, and its inode is no other's. A forked child has no socket.
listener::~listener() {
  struct stat st {};
  if (fd() < 0 || path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  if (st.st_dev == device_ && st.st_ino == inode_) ::unlink(path_.c_str());
}

int listener::fd() const noexcept {
  return socket_ != nullptr ? socket_->get() : -1;
}

result<std::list<connection>> listener::accept_now() {
  std::list<connection> one;
  one.push_back(connection(std::make_unique<fork_closed_fd>(), {}));
  fork_closed_fd &socket = *one.front().socket_;
  socket = fork_closed_fd::create(
      [&] { return ::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (socket.get() >= 0) {
    STILLMAP_RETURN_IF_ERROR(one.front().identify_peer());
    return one;
  }
  if (may_call_again() || errno == ECONNABORTED) return std::list<connection>();
  return make_system_error(errno, listener_op, "a connection cannot be accepted");
}

result<connection> listener::accept_any(std::chrono::milliseconds timeout, std::stop_token cancel) {
  return with_host_memory(listener_op, [&]() -> result<connection> {
    for (;;) {
      STILLMAP_ASSIGN_OR_RETURN(auto one, accept_now());
      if (!one.empty()) return std::move(one.front());
      pollfd p{fd(), POLLIN, 0};
      STILLMAP_RETURN_IF_ERROR(wait_for({&p, 1}, timeout, cancel));
    }
  });
}

void listener::keep_if_allowed(std::list<connection> one,
                               const std::function<bool(const peer_credentials &)> &allow) {
  connection &c = one.front();
  if (!(allow ? allow(c.peer()) : is_same_user_or_root(c.peer()))) {
    return refuse(c,
                  make_error(errc::not_supported, listener_op,
                             "the user of the peer process is not allowed (its uid)", c.peer().uid)
                      .value());
  }
  if (silent_.size() == max_silent) silent_.pop_front();
  silent_.splice(silent_.end(), one);
}

// The oldest connection with a hello; empty: none has one. Closes those that are gone, or have begun
// something else.
result<std::list<connection>> listener::take_peer() {
  std::list<connection> out;
  for (auto c = silent_.begin(); c != silent_.end();) {
    const auto at = c++;
    const auto first = at->peek(max_hello_bytes);
    if (first && *first == nullptr) continue;
    if (!first && first.error().code == std::errc::not_enough_memory) {
      return tl::unexpected(first.error());
    }
    if (first && is_hello(**first)) {
      out.splice(out.end(), silent_, at);
      return out;
    }
    if (first || first.error().is(errc::corrupt)) {
      refuse(*at, make_error(errc::corrupt, listener_op,
                             "this socket is for handoffs, and the first message is not a hello")
                      .value());
    }
    silent_.erase(at);
  }
  return out;
}

result<connection> listener::accept(std::chrono::milliseconds timeout, std::stop_token cancel,
                                    const std::function<bool(const peer_credentials &)> &allow) {
  return with_host_memory(listener_op, [&]() -> result<connection> {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      STILLMAP_ASSIGN_OR_RETURN(auto one, accept_now());
      const bool more = !one.empty();
      if (more) keep_if_allowed(std::move(one), allow);
      STILLMAP_ASSIGN_OR_RETURN(auto peer, take_peer());
      if (!peer.empty()) return std::move(peer.front());
      // Endless strangers are no reason to exceed the timeout.
      if (more && !cancel.stop_requested() && std::chrono::steady_clock::now() < until) continue;
      std::vector<pollfd> fds{{fd(), POLLIN, 0}};
      for (const connection &c : silent_) fds.push_back({c.fd(), POLLIN, 0});
      STILLMAP_RETURN_IF_ERROR(wait_for(fds, timeout, cancel, until));
    }
  });
}

}  // namespace stillmap::handoff
