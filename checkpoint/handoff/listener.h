// A listening Unix socket, and the choice among those that connect to it. docs/handoff.md
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/handoff/connection.h"

namespace stillmap::handoff {

// Owner of a listening socket; a path that is still its own is unlinked in the end. A forked child of
// the process has none of it, and leaves the path alone.
// Threads: externally synchronised.
class listener {
 public:
  // Connections that accept() watches at once, of peers that have not said hello yet. A further one
  // replaces the oldest.
  static constexpr std::size_t max_silent = 16;

  // Listens at `address`: a path, or '@' and an abstract name. Replaces a socket that a dead process
  // has left behind. Holds the file PATH.lock meanwhile, so that of several that start at once one
  // succeeds.
  // Errors: busy (the address is in use; another process has held PATH.lock for 2 s, or another user
  //         owns it: the subject is then that file), invalid_argument (no valid address), the system's.
  static result<listener> create(const std::string &address);
  listener(listener &&) noexcept;
  listener &operator=(listener &&) = delete;
  ~listener();

  // The next connection whose peer is allowed and has begun a handoff: it has called send() or
  // receive(). Others are closed meanwhile: of users that `allow` refuses (empty: all but this one and
  // root), of clients of something else. Those that say nothing delay nobody.
  // Errors: busy (none within `timeout`), operation_canceled, the system's.
  result<connection> accept(std::chrono::milliseconds timeout, std::stop_token cancel = {},
                            const std::function<bool(const peer_credentials &)> &allow = {});
  // The next connection, whoever it is and whatever it wants.
  // Errors: as accept.
  result<connection> accept_any(std::chrono::milliseconds timeout, std::stop_token cancel = {});
  int fd() const noexcept;  // to poll; -1 in a forked child

 private:
  listener(std::unique_ptr<fork_closed_fd> socket, std::string path) noexcept;
  // Empty: there is none. A list, so that keeping one needs no further memory.
  result<std::list<connection>> accept_now();
  void keep_if_allowed(std::list<connection> one,
                       const std::function<bool(const peer_credentials &)> &allow);
  result<std::list<connection>> take_peer();

  std::unique_ptr<fork_closed_fd> socket_;
  std::string path_;                      // empty: abstract
  std::uint64_t device_ = 0, inode_ = 0;  // of the path
  std::list<connection> silent_;          // have not said hello yet; the oldest first
};

}  // namespace stillmap::handoff
