// Messages with file descriptors over a Unix socket. Each message has a size limit and a timeout.
// docs/handoff.md
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/vmm/physical_memory.h"

namespace stillmap::handoff {

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

struct message {
  std::uint16_t kind = 0;
  std::vector<std::byte> body;
  std::vector<owned_fd> fds;
};

// Owner of one end of a connected stream socket. Threads: externally synchronised.
class connection {
 public:
  static constexpr std::uint16_t version = 1;
  static constexpr std::size_t max_fds = 128;  // in one message; Linux allows 253

  // Errors: invalid_argument (not a connected Unix stream socket), the system's.
  static result<connection> adopt(owned_fd socket);
  // Connects to a listener at `address`: a path, or '@' and an abstract name. Retries until a
  // process listens there.
  // Errors: invalid_argument (no valid address), operation_canceled, the system's after `timeout`.
  static result<connection> connect(const std::string &address,
                                    std::chrono::milliseconds timeout = {},
                                    std::stop_token cancel = {});

  const peer_credentials &peer() const { return peer_; }
  int fd() const { return socket_.get(); }  // to poll

  // Errors: busy (no progress for `timeout`, or not all of it was taken before `by`),
  //         operation_canceled, the system's (EPIPE and ECONNRESET: the peer closed its end).
  status send(std::uint16_t kind, std::span<const std::byte> body, std::span<const int> fds,
              std::chrono::milliseconds timeout, std::stop_token cancel,
              deadline by = deadline::max());
  // Receives one message; all of it must arrive before `by`. A body over `limit` bytes is refused
  // before memory is allocated for it.
  // Errors: as send; corrupt (not a message of this protocol, or of another version).
  result<message> receive(std::size_t limit, std::chrono::milliseconds timeout,
                          std::stop_token cancel, deadline by = deadline::max());

 private:
  connection(owned_fd s, peer_credentials p) : socket_(std::move(s)), peer_(p) {}
  status read(std::byte *to, std::size_t bytes, std::vector<owned_fd> *fds,
              std::chrono::milliseconds timeout, const std::stop_token &cancel, deadline by);
  owned_fd socket_;
  peer_credentials peer_;
};

// Owner of a listening socket; a path that is still its own is unlinked in the end.
// Threads: externally synchronised.
class listener {
 public:
  // Listens at `address`: a path, or '@' and an abstract name. Replaces a socket that a dead process
  // has left behind. Locks the directory of the path meanwhile (flock), so that of several that
  // start at once one succeeds.
  // Errors: busy (the address is in use; another process has had the directory locked for 2 s:
  //         the subject is then the directory), invalid_argument (no valid address), the system's.
  static result<listener> create(const std::string &address);
  listener(listener &&) noexcept = default;
  listener &operator=(listener &&) = delete;
  ~listener();
  // Errors: busy (no connection within `timeout`), operation_canceled, the system's.
  result<connection> accept(std::chrono::milliseconds timeout, std::stop_token cancel = {});
  int fd() const { return socket_.get(); }  // to poll

 private:
  listener(owned_fd s, std::string path) noexcept;
  owned_fd socket_;
  std::string path_;                      // empty: abstract
  std::uint64_t device_ = 0, inode_ = 0;  // of the path
};

}  // namespace stillmap::handoff
