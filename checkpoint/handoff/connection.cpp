#include "stillmap/checkpoint/handoff/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "stillmap/checkpoint/handoff/internal/socket_path.h"
#include "stillmap/vmm/internal/host_memory.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::handoff {
namespace {

constexpr const char *connection_op = "handoff::connection";
constexpr std::uint32_t magic = 0x4f484d53;  // "SMHO"

struct header {
  std::uint32_t magic;
  std::uint16_t version, kind;
  std::uint32_t bytes, fds;
};

tl::unexpected<error> system_error(const char *reason, int code = errno) {
  return make_system_error(code, connection_op, reason);
}

// Waits until the socket is ready, in slices so that cancelling takes effect soon.
status wait_for(int fd, short events, std::chrono::milliseconds timeout,
                const std::stop_token &cancel, deadline by = deadline::max()) {
  using std::chrono::milliseconds;
  constexpr milliseconds slice{20};
  const auto until = std::min(std::chrono::steady_clock::now() + timeout, by);
  for (;;) {
    if (cancel.stop_requested())
      return make_error(errc::operation_canceled, connection_op, "stop requested");
    const auto now = std::chrono::steady_clock::now();
    const auto left = std::chrono::duration_cast<milliseconds>(until - now);
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp(left, milliseconds(0), slice).count()));
    // A peer can have the socket be ready at any time, also without a byte to read (MSG_OOB).
    if (n > 0 && now < by) return {};
    if (n < 0 && errno != EINTR) return system_error("the socket cannot be polled");
    if (n >= 0 && left <= milliseconds(0)) {
      return make_error(errc::busy, connection_op, "the peer did not answer in time",
                        static_cast<std::uint64_t>(timeout.count()), 0, error_unit::milliseconds);
    }
  }
}

// Descriptors that a message brought, closed unless they are taken. Owned at once, before anything
// is allocated for them.
struct received_fds {
  std::array<int, connection::max_fds> fds;
  std::size_t count = 0, taken = 0;
  received_fds() = default;
  received_fds(const received_fds &) = delete;
  ~received_fds() {
    while (taken != count) ::close(fds[taken++]);
  }
};

// After a failed system call: whether to poll and call it again.
bool again() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

result<sockaddr_un> parse(const std::string &address, socklen_t *bytes) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (address.size() < (address.starts_with('@') ? 2 : 1) ||
      address.size() >= sizeof out.sun_path) {
    const error e{make_error_code(errc::invalid_argument),
                  connection_op,
                  "not a valid address of a Unix socket",
                  address.size(),
                  sizeof out.sun_path - 1,
                  error_unit::bytes};
    return tl::unexpected(e.about(address));
  }
  std::memcpy(out.sun_path, address.data(), address.size());
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + 1);
  if (address.front() == '@') {
    out.sun_path[0] = '\0';
    --*bytes;
  }
  return out;
}

owned_fd new_socket() {
  return owned_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

bool is_same_user_or_root(const peer_credentials &p) noexcept {
  return p.uid == ::geteuid() || p.uid == 0;
}

result<connection> connection::adopt(owned_fd socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  // A socket without a peer has no user. A peer in another PID namespace has the PID 0 here.
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 ||
      credentials.uid == static_cast<uid_t>(-1)) {
    return make_error(errc::invalid_argument, connection_op,
                      "the descriptor is not a connected Unix socket");
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_error("the socket cannot be made non-blocking");
  }
  return connection(std::move(socket), {credentials.pid, credentials.uid, credentials.gid});
}

result<connection> connection::connect(const std::string &address,
                                       std::chrono::milliseconds timeout, std::stop_token cancel) {
  return with_host_memory(connection_op, [&]() -> result<connection> {
    socklen_t bytes = 0;
    STILLMAP_ASSIGN_OR_RETURN(const sockaddr_un name, parse(address, &bytes));
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      owned_fd socket = new_socket();
      if (socket.get() < 0) return system_error("a socket cannot be created");
      if (::connect(socket.get(), reinterpret_cast<const sockaddr *>(&name), bytes) == 0) {
        return adopt(std::move(socket));
      }
      const int code = errno;
      const bool retry = code == ENOENT || code == ECONNREFUSED || code == EAGAIN || code == EINTR;
      if (cancel.stop_requested())
        return make_error(errc::operation_canceled, connection_op, "stop requested");
      if (!retry || std::chrono::steady_clock::now() >= until) {
        return make_system_error(code, connection_op, "no process accepts connections", address);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

status connection::send(std::uint16_t kind, std::span<const std::byte> body,
                        std::span<const int> fds, std::chrono::milliseconds timeout,
                        std::stop_token cancel, deadline by) {
  header head{magic, version, kind, static_cast<std::uint32_t>(body.size()),
              static_cast<std::uint32_t>(fds.size())};
  alignas(cmsghdr) char room[CMSG_SPACE(max_fds * sizeof(int))] = {};
  // Descriptors are attached to the first byte of the header.
  for (std::size_t sent = 0; sent < sizeof head + body.size();) {
    const std::size_t of_head = std::min(sent, sizeof head), of_body = sent - of_head;
    iovec parts[] = {
        {reinterpret_cast<char *>(&head) + of_head, sizeof head - of_head},
        {const_cast<std::byte *>(body.data()) + of_body, body.size() - of_body},
    };
    msghdr m{};
    m.msg_iov = parts;
    m.msg_iovlen = std::size(parts);
    if (sent == 0 && !fds.empty()) {
      m.msg_control = room;
      m.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr *const c = CMSG_FIRSTHDR(&m);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    const ssize_t n = ::sendmsg(socket_.get(), &m, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (n < 0 && !again()) {
      return system_error("the peer closed the connection");
    } else if (status s = wait_for(socket_.get(), POLLOUT, timeout, cancel, by); !s) {
      return s;
    }
  }
  return {};
}

status connection::read(std::byte *to, std::size_t bytes, std::vector<owned_fd> *fds,
                        std::chrono::milliseconds timeout, const std::stop_token &cancel,
                        deadline by) {
  while (bytes != 0) {
    if (status s = wait_for(socket_.get(), POLLIN, timeout, cancel, by); !s) return s;
    alignas(cmsghdr) char room[CMSG_SPACE(max_fds * sizeof(int))];
    iovec part{to, bytes};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room;
    m.msg_controllen = sizeof room;
    const ssize_t n = ::recvmsg(socket_.get(), &m, MSG_CMSG_CLOEXEC);
    if (n < 0 && again()) continue;
    if (n < 0) return system_error("the peer closed the connection");
    if (n == 0) return system_error("the peer closed the connection", ECONNRESET);
    received_fds received;
    for (cmsghdr *c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        received.fds[received.count++] = fd;  // `room` has space for no more
      }
    }
    if ((m.msg_flags & MSG_CTRUNC) != 0 ||
        (received.count != 0 && (fds == nullptr || fds->size() + received.count > max_fds))) {
      return make_error(errc::corrupt, connection_op, "the peer sent unexpected file descriptors");
    }
    if (received.count != 0) fds->reserve(fds->size() + received.count);
    while (received.taken != received.count) {
      fds->push_back(owned_fd(received.fds[received.taken++]));
    }
    to += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return {};
}

result<message> connection::receive(std::size_t limit, std::chrono::milliseconds timeout,
                                    std::stop_token cancel, deadline by) {
  return with_host_memory(connection_op, [&]() -> result<message> {
    message out;
    header head{};
    STILLMAP_RETURN_IF_ERROR(
        read(reinterpret_cast<std::byte *>(&head), sizeof head, &out.fds, timeout, cancel, by));
    if (head.magic != magic)
      return make_error(errc::corrupt, connection_op, "not a message of this protocol");
    if (head.version != version) {
      return make_error(errc::corrupt, connection_op, "the peer uses another protocol version",
                        head.version, version);
    }
    if (head.bytes > limit) {
      return make_error(errc::corrupt, connection_op, "the message exceeds the size limit",
                        head.bytes, limit, error_unit::bytes);
    }
    if (head.fds != out.fds.size()) {
      return make_error(errc::corrupt, connection_op,
                        "another number of file descriptors than announced", out.fds.size(),
                        head.fds, error_unit::items);
    }
    out.kind = head.kind;
    // Grows as data arrives: an announced size alone allocates no memory.
    constexpr std::size_t part = std::size_t{1} << 20;
    while (out.body.size() < head.bytes) {
      const std::size_t done = out.body.size();
      out.body.resize(std::min<std::size_t>(head.bytes, done + part));
      STILLMAP_RETURN_IF_ERROR(
          read(out.body.data() + done, out.body.size() - done, nullptr, timeout, cancel, by));
    }
    return out;
  });
}

result<listener> listener::create(const std::string &address) {
  return with_host_memory(connection_op, [&]() -> result<listener> {
    socklen_t bytes = 0;
    STILLMAP_ASSIGN_OR_RETURN(const sockaddr_un name, parse(address, &bytes));
    const bool is_path = address.front() != '@';
    // Allocated before the path exists, so that it is unlinked after any failure.
    std::string path = is_path ? address : std::string();
    owned_fd socket = new_socket();
    if (socket.get() < 0) return system_error("a socket cannot be created");
    fork_closed_fd locked;
    if (is_path) {
      STILLMAP_ASSIGN_OR_RETURN(locked, lock_directory_of(address));
    }
    const auto bind = [&] {
      return ::bind(socket.get(), reinterpret_cast<const sockaddr *>(&name), bytes) == 0 ? 0
                                                                                         : errno;
    };
    int code = bind();
    if (code == EADDRINUSE && is_path && remove_stale_socket(address)) code = bind();
    if (code == EADDRINUSE) {
      const error e{make_error_code(errc::busy), connection_op, "the address is in use"};
      return tl::unexpected(e.about(address));
    }
    if (code != 0)
      return make_system_error(code, connection_op, "the socket cannot be bound", address);
    listener out(std::move(socket), std::move(path));
    if (::listen(out.socket_.get(), SOMAXCONN) != 0) {
      return make_system_error(errno, connection_op, "the socket cannot listen", address);
    }
    return out;
  });
}

listener::listener(owned_fd s, std::string path) noexcept
    : socket_(std::move(s)), path_(std::move(path)) {
  struct stat st {};
  if (path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  device_ = st.st_dev;
  inode_ = st.st_ino;
}

// Somebody may have removed the name, and another process may have it now. While this socket listens,
// no process takes the name for a dead one's, and its inode is no other's.
listener::~listener() {
  struct stat st {};
  if (socket_.get() < 0 || path_.empty() || ::lstat(path_.c_str(), &st) != 0) return;
  if (st.st_dev == device_ && st.st_ino == inode_) ::unlink(path_.c_str());
}

result<connection> listener::accept(std::chrono::milliseconds timeout, std::stop_token cancel) {
  for (;;) {
    STILLMAP_RETURN_IF_ERROR(wait_for(socket_.get(), POLLIN, timeout, cancel));
    owned_fd got(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (got.get() >= 0) return connection::adopt(std::move(got));
    if (!again() && errno != ECONNABORTED) return system_error("a connection cannot be accepted");
  }
}

}  // namespace stillmap::handoff
