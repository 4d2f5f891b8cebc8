// Messages with file descriptors over a Unix socket. Each message has a size limit and a timeout.
// docs/control_protocol.md
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap {
class fork_closed_fd;
}

namespace stillmap::checkpoint {

using deadline = std::chrono::steady_clock::time_point;

// Of the process at the other end, from the kernel (SO_PEERCRED).
struct peer_credentials {
  pid_t pid = -1;
  uid_t uid = 0;
  gid_t gid = 0;
};

// Whether the process runs as the same user or as root, who could take the memory anyway: the rule
// where an application gives no other.
bool is_same_user_or_root(const peer_credentials &p) noexcept;

struct socket_message {
  std::uint16_t kind = 0;
  std::vector<std::byte> body;
  std::vector<owned_fd> fds;
};

// Owner of one end of a connected stream socket. A forked child of the process has none of it: each
// call fails there.
// Threads: externally synchronised.
class socket_channel {
 public:
  static constexpr std::uint16_t version = 1;
  static constexpr std::size_t max_fds = 128;  // in one message; Linux allows 253

  // Errors: invalid_argument (not a connected Unix stream socket), the system's.
  static result<socket_channel> adopt(owned_fd socket);
  // Connects to a listener at `address`: a path, or '@' and an abstract name. Retries until a
  // process listens there. Where one listens that is busy with others (its backlog is full), retries
  // for 1 s at least.
  // Errors: invalid_argument (no valid address), operation_canceled, the system's after `timeout`.
  static result<socket_channel> connect(const std::string &address,
                                        std::chrono::milliseconds timeout = {},
                                        std::stop_token cancel = {});
  // The same without waiting: also EAGAIN (the process is busy with others).
  static result<socket_channel> try_connect(const std::string &address);
  socket_channel(socket_channel &&) noexcept;
  socket_channel &operator=(socket_channel &&) noexcept;
  ~socket_channel();

  const peer_credentials &peer() const { return peer_; }
  int fd() const noexcept;  // to poll; -1 in a forked child

  // Errors: busy (no progress for `timeout`, or not all of it was taken before `by`),
  //         operation_canceled, the system's (EPIPE and ECONNRESET: the peer closed its end;
  //         ETOOMANYREFS: for `timeout`, the user's processes have had as many descriptors on their
  //         way as one process may open).
  status send(std::uint16_t kind, std::span<const std::byte> body, std::span<const int> fds,
              std::chrono::milliseconds timeout, std::stop_token cancel,
              deadline by = deadline::max());
  // Receives one message; all of it must arrive before `by`. A body over `limit` bytes is refused
  // before memory is allocated for it.
  // Errors: as send; corrupt (not a message of this protocol, or of another version); EMFILE (this
  //         process has no descriptors left for those that the peer sent).
  result<socket_message> receive(std::size_t limit, std::chrono::milliseconds timeout,
                                 std::stop_token cancel, deadline by = deadline::max());
  // The message that receive() would return, without waiting. Null: not all of it has come yet.
  // Valid until the next call. Errors: as receive.
  result<const socket_message *> peek(std::size_t limit);

 private:
  friend class socket_listener;
  socket_channel(std::unique_ptr<fork_closed_fd> socket, peer_credentials p) noexcept;
  // Requires: the socket does not block.
  static result<socket_channel> over(std::unique_ptr<fork_closed_fd> socket);
  status identify_peer();
  result<bool> advance(std::size_t limit);
  status check_header(std::size_t limit) const;
  result<std::size_t> read(std::byte *to, std::size_t bytes, std::vector<owned_fd> *fds);
  socket_message take_incoming() noexcept;

  struct header {
    std::uint32_t magic;
    std::uint16_t version, kind;
    std::uint32_t bytes, fds;
  };
  std::unique_ptr<fork_closed_fd> socket_;
  peer_credentials peer_;
  // The next message, as far as it has come.
  header head_{};
  socket_message incoming_;
  std::size_t arrived_ = 0;  // bytes of both
};

}  // namespace stillmap::checkpoint
