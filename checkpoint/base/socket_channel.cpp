#include "stillmap/checkpoint/base/socket_channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "stillmap/checkpoint/base/unix_socket.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

constexpr std::uint32_t magic = 0x4f484d53;  // "SMHO"

// How long to retry where a process listens, but its backlog is full: it is there, and busy.
constexpr std::chrono::milliseconds full_backlog_timeout{1'000};

tl::unexpected<error> system_error(const char *reason, int code = errno) {
  return make_system_error(code, reason);
}

// Descriptors that a message brought, closed unless they are taken. Owned at once, before anything
// is allocated for them.
struct received_fds {
  std::array<int, socket_channel::max_fds> fds;
  std::size_t count = 0, taken = 0;
  received_fds() = default;
  received_fds(const received_fds &) = delete;
  ~received_fds() {
    while (taken != count) ::close(fds[taken++]);
  }
};

// Linux limits the descriptors that processes of a user have sent and that nobody has received yet, all
// sockets together, to what one process may open. Nothing can be polled for that.
status wait_for_fds_in_flight(std::chrono::milliseconds timeout, const std::stop_token &cancel,
                              deadline by, std::optional<deadline> &since) {
  const auto now = std::chrono::steady_clock::now();
  if (!since) since = now;
  if (cancel.stop_requested()) return make_error(errc::operation_canceled, "stop requested");
  if (now - *since >= timeout || now >= by) {
    return system_error(
        "too many descriptors of this user are on their way: raise the limit of open files",
        ETOOMANYREFS);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {};
}

}  // namespace

bool is_same_user_or_root(const peer_credentials &p) noexcept {
  return p.uid == ::geteuid() || p.uid == 0;
}

socket_channel::socket_channel(std::unique_ptr<fork_closed_fd> socket, peer_credentials p) noexcept
    : socket_(std::move(socket)), peer_(p) {}
socket_channel::socket_channel(socket_channel &&) noexcept = default;
socket_channel &socket_channel::operator=(socket_channel &&) noexcept = default;
socket_channel::~socket_channel() = default;

int socket_channel::fd() const noexcept {
  return socket_ != nullptr ? socket_->get() : -1;
}

result<socket_channel> socket_channel::over(std::unique_ptr<fork_closed_fd> socket) {
  socket_channel out(std::move(socket), {});
  STILLMAP_RETURN_IF_ERROR(out.identify_peer());
  return out;
}

status socket_channel::identify_peer() {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  // A socket without a peer has no user. A peer in another PID namespace has the PID 0 here.
  if (::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 ||
      credentials.uid == static_cast<uid_t>(-1)) {
    return make_error(errc::invalid_argument, "the descriptor is not a connected Unix socket");
  }
  peer_ = {credentials.pid, credentials.uid, credentials.gid};
  return {};
}

result<socket_channel> socket_channel::adopt(owned_fd socket) {
  return with_host_memory("socket_channel::adopt", [&]() -> result<socket_channel> {
    auto own = std::make_unique<fork_closed_fd>();
    *own = fork_closed_fd::adopt(socket.release());
    const int flags = ::fcntl(own->get(), F_GETFL);
    if (flags >= 0 && ::fcntl(own->get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      return system_error("the socket cannot be made non-blocking");
    }
    return over(std::move(own));
  });
}

result<socket_channel> socket_channel::try_connect(const std::string &address) {
  return with_host_memory("socket_channel::try_connect", [&]() -> result<socket_channel> {
    STILLMAP_ASSIGN_OR_RETURN(const socket_address to, parse_address(address));
    auto socket = std::make_unique<fork_closed_fd>(create_socket());
    if (socket->get() < 0) return system_error("a socket cannot be created");
    if (::connect(socket->get(), to.get(), to.bytes) == 0) return over(std::move(socket));
    const bool is_there = errno != ENOENT;
    return make_system_error(
        errno, is_there ? "no process accepts connections" : "there is no socket of this name",
        address);
  });
}

result<socket_channel> socket_channel::connect(const std::string &address,
                                               std::chrono::milliseconds timeout,
                                               std::stop_token cancel) {
  const operation_scope scope("socket_channel::connect");
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    auto out = try_connect(address);
    if (out) return out;
    const std::error_code why = out.error().code;
    const bool is_busy = why == std::errc::resource_unavailable_try_again;
    const bool retry = is_busy || why == std::errc::no_such_file_or_directory ||
                       why == std::errc::connection_refused || why == std::errc::interrupted;
    const auto until = begun + (is_busy ? std::max(timeout, full_backlog_timeout) : timeout);
    if (retry && cancel.stop_requested())
      return make_error(errc::operation_canceled, "stop requested");
    if (!retry || std::chrono::steady_clock::now() >= until) return out;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

status socket_channel::send(std::uint16_t kind, std::span<const std::byte> body,
                            std::span<const int> fds, std::chrono::milliseconds timeout,
                            std::stop_token cancel, deadline by) {
  const operation_scope scope("socket_channel::send");
  header head{magic, version, kind, static_cast<std::uint32_t>(body.size()),
              static_cast<std::uint32_t>(fds.size())};
  alignas(cmsghdr) char room[CMSG_SPACE(max_fds * sizeof(int))] = {};
  std::optional<deadline> waiting_since;
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
    const ssize_t n = ::sendmsg(fd(), &m, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (n < 0 && errno == ETOOMANYREFS) {
      STILLMAP_RETURN_IF_ERROR(wait_for_fds_in_flight(timeout, cancel, by, waiting_since));
    } else if (n < 0 && !may_call_again()) {
      return system_error("the peer closed the connection");
    } else {
      pollfd p{fd(), POLLOUT, 0};
      STILLMAP_RETURN_IF_ERROR(wait_for({&p, 1}, timeout, cancel, by));
    }
  }
  return {};
}

// Reads what has come, at most `bytes`. 0: nothing yet.
result<std::size_t> socket_channel::read(std::byte *to, std::size_t bytes,
                                         std::vector<owned_fd> *fds) {
  alignas(cmsghdr) char room[CMSG_SPACE(max_fds * sizeof(int))];
  iovec part{to, bytes};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  const ssize_t n = ::recvmsg(fd(), &m, MSG_CMSG_CLOEXEC);
  if (n < 0 && may_call_again()) return std::size_t{0};
  if (n < 0) return system_error("the peer closed the connection");
  if (n == 0) return system_error("the peer closed the connection", ECONNRESET);
  received_fds received;
  for (cmsghdr *c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; ++i) {
      int received_fd = -1;
      std::memcpy(&received_fd, CMSG_DATA(c) + i * sizeof received_fd, sizeof received_fd);
      received.fds[received.count++] = received_fd;  // `room` has space for no more
    }
  }
  if ((m.msg_flags & MSG_CTRUNC) != 0 && received.count < max_fds) {
    return system_error("no descriptor is left for those that the peer sent", EMFILE);
  }
  if ((m.msg_flags & MSG_CTRUNC) != 0 ||
      (received.count != 0 && (fds == nullptr || fds->size() + received.count > max_fds))) {
    return make_error(errc::corrupt, "the peer sent unexpected file descriptors");
  }
  if (received.count != 0) fds->reserve(fds->size() + received.count);
  while (received.taken != received.count) {
    fds->push_back(owned_fd(received.fds[received.taken++]));
  }
  return static_cast<std::size_t>(n);
}

status socket_channel::check_header(std::size_t limit) const {
  if (head_.magic != magic) return make_error(errc::corrupt, "not a message of this protocol");
  if (head_.version != version) {
    return make_error(errc::corrupt, "the peer uses another protocol version", head_.version,
                      version);
  }
  if (head_.bytes > limit) {
    return make_error(errc::corrupt, "the message exceeds the size limit", head_.bytes, limit,
                      error_unit::bytes);
  }
  if (head_.fds != incoming_.fds.size()) {
    return make_error(errc::corrupt, "another number of file descriptors than announced",
                      incoming_.fds.size(), head_.fds, error_unit::items);
  }
  return {};
}

// Reads what has come of the next message. False: not all of it.
result<bool> socket_channel::advance(std::size_t limit) {
  auto *const head = reinterpret_cast<std::byte *>(&head_);
  while (arrived_ < sizeof head_) {
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t n,
                              read(head + arrived_, sizeof head_ - arrived_, &incoming_.fds));
    if (n == 0) return false;
    arrived_ += n;
  }
  STILLMAP_RETURN_IF_ERROR(check_header(limit));
  incoming_.kind = head_.kind;
  // Grows as data arrives: an announced size alone allocates no memory.
  constexpr std::size_t part = std::size_t{1} << 20;
  std::vector<std::byte> &body = incoming_.body;
  for (std::size_t done; (done = arrived_ - sizeof head_) < head_.bytes;) {
    if (done == body.size()) body.resize(std::min<std::size_t>(head_.bytes, done + part));
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t n,
                              read(body.data() + done, body.size() - done, nullptr));
    if (n == 0) return false;
    arrived_ += n;
  }
  return true;
}

socket_message socket_channel::take_incoming() noexcept {
  arrived_ = 0;
  return std::exchange(incoming_, {});
}

result<socket_message> socket_channel::receive(std::size_t limit, std::chrono::milliseconds timeout,
                                               std::stop_token cancel, deadline by) {
  const operation_scope scope("socket_channel::receive");
  for (;;) {
    STILLMAP_ASSIGN_OR_RETURN(const socket_message *const whole, peek(limit));
    if (whole != nullptr) return take_incoming();
    pollfd p{fd(), POLLIN, 0};
    STILLMAP_RETURN_IF_ERROR(wait_for({&p, 1}, timeout, cancel, by));
  }
}

result<const socket_message *> socket_channel::peek(std::size_t limit) {
  const auto whole = with_host_memory("socket_channel::peek", [&] { return advance(limit); });
  if (whole) return *whole ? &incoming_ : nullptr;
  take_incoming();
  return tl::unexpected(whole.error());
}

}  // namespace stillmap::checkpoint
