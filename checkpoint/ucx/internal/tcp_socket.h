// Sockets over TCP: addresses, and bytes with a time limit.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap::ucx {

using clock = std::chrono::steady_clock;

struct free_addresses {
  void operator()(addrinfo *a) const noexcept { ::freeaddrinfo(a); }
};
using addresses = std::unique_ptr<addrinfo, free_addresses>;

// Errors: invalid_argument; the subject is the address.
status check_address(const std::string &address);
// Resolves "host:port" or "[IPv6 address]:port".
// Errors: invalid_argument; the subject is the address.
result<addresses> resolve(const std::string &address, bool listening);
std::string to_text(const sockaddr *address, socklen_t bytes);

// A connection to the first address that answers.
// Errors: the system's, busy (no answer until `until`); the subject is the address.
result<fork_closed_fd> connect_to(const std::string &address, clock::time_point until);

// Errors: busy (not ready until `until`), the system's.
status wait_for_socket(int socket, short what, clock::time_point until);
// Of a socket that does not block. Errors: busy, the system's (ECONNRESET: the peer has closed it).
status write_all(int socket, std::span<const std::byte> bytes, clock::time_point until);
status read_all(int socket, std::span<std::byte> into, clock::time_point until);

}  // namespace stillmap::ucx
