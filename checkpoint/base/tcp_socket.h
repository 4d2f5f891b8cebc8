// Connections and listeners over TCP, which do not block, and bytes with a time limit.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap::checkpoint {

struct tcp_address {
  std::string host,
      port;  // without the brackets of an IPv6 address; an empty host: all of this machine
};
// Of "host:port" or "[IPv6 address]:port".
// Errors: invalid_argument; the subject is the address.
result<tcp_address> parse_tcp_address(const std::string &address);

// Whether the host is written as numbers, so that no name server is asked for it.
bool is_numeric(const tcp_address &address) noexcept;

// A connection to the first address of the host that answers.
// Errors: invalid_argument (no such host), the system's, busy (no answer before `until`); the subject is the address.
result<fork_closed_fd> connect_tcp(const std::string &address,
                                   std::chrono::steady_clock::time_point until);

// Threads: safe.
class tcp_listener {
 public:
  // Errors: invalid_argument, the system's; the subject is the address.
  static result<tcp_listener> create(const std::string &address);

  struct connection {
    fork_closed_fd socket;
    std::string from;  // the peer's address
  };
  // Errors: busy (none came before `until`), the system's (after shutdown(): ECANCELED).
  result<connection> accept(std::chrono::steady_clock::time_point until) const;
  // With the port that the system chose, if it was to.
  const std::string &address() const { return address_; }
  // Fails every current and future accept().
  void shutdown() const noexcept;

 private:
  tcp_listener(fork_closed_fd socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}
  fork_closed_fd socket_;
  std::string address_;
};

// Waits for events of poll().
// Errors: busy (not ready before `until`), the system's.
status wait_for_socket(int socket, short events, std::chrono::steady_clock::time_point until);
// Errors: as wait_for_socket(), the system's (ECONNRESET: the peer has closed the connection).
status write_all(int socket, std::span<const std::byte> bytes,
                 std::chrono::steady_clock::time_point until);
status read_all(int socket, std::span<std::byte> into, std::chrono::steady_clock::time_point until);

}  // namespace stillmap::checkpoint
