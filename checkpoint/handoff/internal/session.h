// The part of the handoff protocol that sender and receiver share.
#pragma once

#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"

namespace stillmap::handoff {

// Threads: externally synchronised.
class session {
 public:
  session(const device &d, connection &peer, const handoff_options &options)
      : device_(d), peer_(peer), options_(options) {}

  // Checks the peer's credentials, its role, and that it uses the same device.
  status greet(role own);
  status send(kind k, std::span<const std::byte> body = {}, std::span<const int> fds = {});
  // Errors: corrupt (a message of another kind), an error of the peer.
  result<checkpoint::socket_message> receive(kind k, std::size_t limit, std::size_t min_fds,
                                             std::size_t max_fds);
  // Sends the error to the peer, if it still listens, and returns it.
  tl::unexpected<error> abort(const error &e) noexcept;
  void reached(step s) const {
    if (options_.on_step) options_.on_step(s);
  }
  // From now on, options.cancel has no effect.
  void ignore_cancel() { cancel_ = {}; }

 private:
  // For a whole message: each of its bytes may come just within the timeout.
  checkpoint::deadline by() const { return std::chrono::steady_clock::now() + options_.timeout; }

  const device &device_;
  connection &peer_;
  const handoff_options &options_;
  std::stop_token cancel_ = options_.cancel;
  bool peer_failed_ = false;
};

}  // namespace stillmap::handoff
