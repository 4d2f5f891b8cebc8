// Addresses, descriptors and waiting of Unix stream sockets, for connections and listeners.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <span>
#include <stop_token>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap::checkpoint {

struct socket_address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&name); }
};

// Of a path, or of '@' and an abstract name.
// Errors: invalid_argument; the subject is the address.
result<socket_address> parse_address(const std::string &address);

// Not blocking. -1: none could be created, and errno says why.
fork_closed_fd create_socket() noexcept;

// After a failed system call: whether to poll and call it again.
bool may_call_again() noexcept;

// Waits until one of the descriptors is ready, in slices so that cancelling takes effect soon.
// Errors: busy (none was ready within `timeout` or before `by`: value = timeout, in ms),
//         operation_canceled, the system's.
status wait_for(
    std::span<pollfd> fds, std::chrono::milliseconds timeout, const std::stop_token &cancel,
    std::chrono::steady_clock::time_point by = std::chrono::steady_clock::time_point::max());

}  // namespace stillmap::checkpoint
