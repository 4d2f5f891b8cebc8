// Serves the connections of a listening Unix socket.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"

namespace stillmap::checkpoint {

struct socket_server_options {
  // Literals: the name of the server, for its errors, and the reason why `allow` refuses a process (value =
  // its uid).
  const char *server = "socket_server";
  const char *forbidden = "this user is not served (its uid)";
  // Whether to serve this process. Empty: if it runs as the same user or as root. Called on the thread
  // that accepts connections: it must not wait.
  std::function<bool(const peer_credentials &)> allow;
  // Tells a client that it is not served, and why. It must not wait.
  std::function<void(socket_channel &, const error &)> refuse;
  // Connections served at once, leases not counted. A further one replaces the oldest on which no
  // request has come yet; if one has come on each, it is refused as busy.
  std::size_t max_connections = 8;
};

// Serves connections while it exists, with one sleeping thread, and one thread for each connection that
// is being served. Threads: externally synchronised. Fork: do not destroy it in a child.
class socket_server {
 public:
  // What the server keeps for a client until that closes its connection, dies, or sends more.
  using lease = std::shared_ptr<const void>;
  // Serves one connection, on its own thread. It sets `claimed` once a request has come; where it was
  // set already, the connection has been replaced, and no request is carried out. Null: the connection
  // is closed. Otherwise it stays open without a thread. Must not throw.
  using handler =
      std::function<lease(socket_channel &, std::atomic<bool> &claimed, const std::stop_token &)>;

  // Listens at `address`, as socket_listener::create.
  // Errors: as that; invalid_argument (max_connections is 0), the system's.
  static result<socket_server> create(const std::string &address, socket_server_options options,
                                      handler serve);
  socket_server(socket_server &&) noexcept;
  socket_server &operator=(socket_server &&) noexcept;
  // Asks all handlers to stop, and waits for them.
  ~socket_server();

 private:
  class core;
  explicit socket_server(std::unique_ptr<core> c) noexcept;
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::checkpoint
