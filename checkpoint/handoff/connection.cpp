#include "stillmap/checkpoint/handoff/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace stillmap::handoff {
namespace {

constexpr const char *op = "handoff::connection";
constexpr std::uint32_t magic = 0x4f484d53;  // "SMHO"

struct header {
  std::uint32_t magic;
  std::uint16_t version, kind;
  std::uint32_t bytes, fds;
};

tl::unexpected<error> system_error(const char *reason, int code = errno) {
  return tl::unexpected<error>(
      error{std::error_code(code, std::system_category()), op, reason, 0, 0});
}

// Until the socket is ready, in slices so that a cancelled wait ends soon.
status wait_for(int fd, short what, patience wait, const std::stop_token &cancel,
                deadline by = deadline::max()) {
  constexpr patience slice{20};
  const auto until = std::min(std::chrono::steady_clock::now() + wait, by);
  for (;;) {
    if (cancel.stop_requested()) return make_error(errc::busy, op, "cancelled");
    const auto left =
        std::chrono::duration_cast<patience>(until - std::chrono::steady_clock::now());
    pollfd p{fd, what, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::clamp(left, patience(0), slice).count()));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return system_error("the socket cannot be waited for");
    if (n == 0 && left <= patience(0)) {
      return make_error(errc::busy, op, "the other side did not answer in time (ms)",
                    static_cast<std::uint64_t>(wait.count()));
    }
  }
}

bool again() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

bool name_of(const std::string &where, sockaddr_un *name, socklen_t *bytes) {
  *name = {};
  name->sun_family = AF_UNIX;
  if (where.size() < (where.starts_with('@') ? 2 : 1) || where.size() >= sizeof name->sun_path) {
    return false;
  }
  std::memcpy(name->sun_path, where.data(), where.size());
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + where.size() + 1);
  if (where.front() == '@') {
    name->sun_path[0] = '\0';
    --*bytes;
  }
  return true;
}

owned_fd new_socket() {
  return owned_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

tl::unexpected<error> bad_name(const std::string &where) {
  return make_error(errc::invalid_argument, op, "this is no name of a Unix socket", where.size(),
                sizeof(sockaddr_un::sun_path) - 1);
}

}  // namespace

result<connection> connection::adopt(owned_fd socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 ||
      credentials.pid == 0) {
    return make_error(errc::invalid_argument, op, "this is no connected Unix socket");
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_error("the socket cannot be set up");
  }
  return connection(std::move(socket), {credentials.pid, credentials.uid, credentials.gid});
}

result<connection> connection::connect(const std::string &where, patience wait,
                                       std::stop_token cancel) {
  sockaddr_un name;
  socklen_t bytes = 0;
  if (!name_of(where, &name, &bytes)) return bad_name(where);
  const auto until = std::chrono::steady_clock::now() + wait;
  for (;;) {
    owned_fd socket = new_socket();
    if (socket.get() < 0) return system_error("no socket can be made");
    if (::connect(socket.get(), reinterpret_cast<const sockaddr *>(&name), bytes) == 0) {
      return adopt(std::move(socket));
    }
    const int why = errno;
    const bool later = why == ENOENT || why == ECONNREFUSED || why == EAGAIN || why == EINTR;
    if (cancel.stop_requested()) return make_error(errc::busy, op, "cancelled");
    if (!later || std::chrono::steady_clock::now() >= until) {
      return system_error("nobody can be reached there", why);
    }
    std::this_thread::sleep_for(patience(5));
  }
}

status connection::send(std::uint16_t kind, std::span<const std::byte> body,
                        std::span<const int> fds, patience wait, std::stop_token cancel) {
  header head{magic, version, kind, static_cast<std::uint32_t>(body.size()),
              static_cast<std::uint32_t>(fds.size())};
  alignas(cmsghdr) char room[CMSG_SPACE(most_fds * sizeof(int))] = {};
  // Descriptors go with the first byte of the header.
  for (std::size_t sent = 0; sent < sizeof head;) {
    iovec part{reinterpret_cast<char *>(&head) + sent, sizeof head - sent};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
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
      return system_error("the other side is gone");
    } else if (status s = wait_for(socket_.get(), POLLOUT, wait, cancel); !s) {
      return s;
    }
  }
  while (!body.empty()) {
    const ssize_t n = ::send(socket_.get(), body.data(), body.size(), MSG_NOSIGNAL);
    if (n > 0) {
      body = body.subspan(static_cast<std::size_t>(n));
    } else if (n < 0 && !again()) {
      return system_error("the other side is gone");
    } else if (status s = wait_for(socket_.get(), POLLOUT, wait, cancel); !s) {
      return s;
    }
  }
  return {};
}

status connection::read(std::byte *to, std::size_t bytes, std::vector<owned_fd> *fds, patience wait,
                        const std::stop_token &cancel, deadline by) {
  while (bytes != 0) {
    if (status s = wait_for(socket_.get(), POLLIN, wait, cancel, by); !s) return s;
    alignas(cmsghdr) char room[CMSG_SPACE(most_fds * sizeof(int))];
    iovec part{to, bytes};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room;
    m.msg_controllen = sizeof room;
    const ssize_t n = ::recvmsg(socket_.get(), &m, MSG_CMSG_CLOEXEC);
    if (n < 0 && again()) continue;
    if (n < 0) return system_error("the other side is gone");
    if (n == 0) return system_error("the other side is gone", ECONNRESET);
    // Whatever came is ours to close.
    std::vector<owned_fd> came;
    for (cmsghdr *c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        came.push_back(owned_fd(fd));
      }
    }
    if ((m.msg_flags & MSG_CTRUNC) != 0 ||
        (!came.empty() && (fds == nullptr || fds->size() + came.size() > most_fds))) {
      return make_error(errc::corrupt, op, "file descriptors came that nobody waits for");
    }
    for (owned_fd &fd : came) fds->push_back(std::move(fd));
    to += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return {};
}

result<message> connection::receive(std::size_t limit, patience wait, std::stop_token cancel,
                                    deadline by) {
  message out;
  header head{};
  if (status s =
          read(reinterpret_cast<std::byte *>(&head), sizeof head, &out.fds, wait, cancel, by);
      !s) {
    return tl::unexpected(s.error());
  }
  if (head.magic != magic) return make_error(errc::corrupt, op, "this is no message of ours");
  if (head.version != version) {
    return make_error(errc::corrupt, op, "the other side speaks another version", head.version,
                  version);
  }
  if (head.bytes > limit) {
    return make_error(errc::corrupt, op, "the message is larger than one may be", head.bytes,
                  limit);
  }
  if (head.fds != out.fds.size()) {
    return make_error(errc::corrupt, op, "not as many file descriptors came as were announced",
                  out.fds.size(), head.fds);
  }
  out.kind = head.kind;
  // As it comes, so that announcing much and sending nothing costs no memory.
  constexpr std::size_t part = std::size_t{1} << 20;
  while (out.body.size() < head.bytes) {
    const std::size_t done = out.body.size();
    out.body.resize(std::min<std::size_t>(head.bytes, done + part));
    if (status s = read(out.body.data() + done, out.body.size() - done, nullptr, wait, cancel, by);
        !s) {
      return tl::unexpected(s.error());
    }
  }
  return out;
}

result<listener> listener::create(const std::string &where) {
  sockaddr_un name;
  socklen_t bytes = 0;
  if (!name_of(where, &name, &bytes)) return bad_name(where);
  owned_fd socket = new_socket();
  if (socket.get() < 0) return system_error("no socket can be made");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr *>(&name), bytes) != 0) {
    if (errno == EADDRINUSE) return make_error(errc::busy, op, "the name is in use");
    return system_error("the name cannot be taken");
  }
  listener out(std::move(socket), where.front() == '@' ? std::string() : where);
  if (::listen(out.socket_.get(), 4) != 0) return system_error("the socket cannot listen");
  return out;
}

listener::~listener() {
  if (socket_.get() >= 0 && !path_.empty()) ::unlink(path_.c_str());
}

result<connection> listener::accept(patience wait, std::stop_token cancel) {
  for (;;) {
    if (status s = wait_for(socket_.get(), POLLIN, wait, cancel); !s) {
      return tl::unexpected(s.error());
    }
    owned_fd got(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (got.get() >= 0) return connection::adopt(std::move(got));
    if (!again() && errno != ECONNABORTED) return system_error("nobody can be accepted");
  }
}

}  // namespace stillmap::handoff
