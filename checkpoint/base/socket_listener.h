// A listening Unix socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"

namespace stillmap::checkpoint {

// Owner of a listening socket; a path that is still its own is unlinked in the end. A forked child of
// the process has none of it, and leaves the path alone.
// Threads: externally synchronised.
class socket_listener {
 public:
  // Listens at `address`: a path, or '@' and an abstract name. Replaces a socket that a dead process
  // has left behind. Holds the file PATH.lock meanwhile, so that of several that start at once one
  // succeeds.
  // Errors: busy (the address is in use; another process has held PATH.lock for 2 s, or another user
  //         owns it: the subject is then that file), invalid_argument (no valid address), the system's.
  static result<socket_listener> create(const std::string &address);
  socket_listener(socket_listener &&) noexcept;
  socket_listener &operator=(socket_listener &&) = delete;
  ~socket_listener();

  // The next connection, whoever it is and whatever it wants.
  // Errors: busy (none within `timeout`), operation_canceled, the system's.
  result<socket_channel> accept(std::chrono::milliseconds timeout, std::stop_token cancel = {});
  // The same without waiting: one connection, or none. A list, so that keeping it needs no further
  // memory.
  // Allocates host memory: may throw std::bad_alloc.
  result<std::list<socket_channel>> accept_now();
  int fd() const noexcept;  // to poll; -1 in a forked child

 private:
  socket_listener(std::unique_ptr<fork_closed_fd> socket, std::string path) noexcept;

  std::unique_ptr<fork_closed_fd> socket_;
  std::string path_;                      // empty: abstract
  std::uint64_t device_ = 0, inode_ = 0;  // of the path
};

}  // namespace stillmap::checkpoint
