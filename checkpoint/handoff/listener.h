// Accepts the peers of handoffs, among all that connect to a socket. docs/handoff.md
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/base/socket_listener.h"

namespace stillmap::handoff {

// What two processes hand memory off over.
using connection = checkpoint::socket_channel;
using checkpoint::peer_credentials;

// Owner of a listening socket, as checkpoint::socket_listener.
// Threads: externally synchronised.
class listener {
 public:
  // Connections that accept() watches at once, of peers that have not said hello yet. A further one
  // replaces the oldest.
  static constexpr std::size_t max_silent = 16;

  // Errors: as checkpoint::socket_listener::create.
  static result<listener> create(const std::string &address);

  // The next connection whose peer is allowed and has begun a handoff: it has called send() or
  // receive(). Others are closed meanwhile: of users that `allow` refuses (empty: all but this one and
  // root), of clients of something else. Those that say nothing delay nobody.
  // Errors: busy (none within `timeout`), operation_canceled, the system's.
  result<connection> accept(std::chrono::milliseconds timeout, std::stop_token cancel = {},
                            const std::function<bool(const peer_credentials &)> &allow = {});
  int fd() const noexcept { return at_.fd(); }  // to poll; -1 in a forked child

 private:
  explicit listener(checkpoint::socket_listener at) noexcept : at_(std::move(at)) {}
  void keep_if_allowed(std::list<connection> one,
                       const std::function<bool(const peer_credentials &)> &allow);
  result<std::list<connection>> take_peer();

  checkpoint::socket_listener at_;
  std::list<connection> silent_;  // have not said hello yet; the oldest first
};

}  // namespace stillmap::handoff
