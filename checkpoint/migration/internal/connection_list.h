// The connections that a receiver has accepted, and which of them go when there are too many.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration {

struct accepted_connection {
  std::unique_ptr<channel> with;
  std::string host;  // of the peer, as it claims it before the handshake
  // refused: its handshake failed, and the peer has yet to read why.
  enum { handshake, refused, authenticated, dismissed, over } state = handshake;
  std::jthread thread;  // destroyed first
};

// Threads: externally synchronised.
class connection_list {
 public:
  // Whether another connection can be accepted once those that were dismissed have ended.
  bool must_wait() const { return count(accepted_connection::dismissed) >= max_connections; }
  bool is_full() const { return count(accepted_connection::authenticated) >= max_connections; }
  // Makes room for a connection whose handshake begins. Peers that have not said who they are must not
  // keep others out: of too many of one host, or in all, one is dismissed: the oldest of those that
  // were refused, else of those that have not begun to say it, else of all.
  void make_room_for(const std::string &host) noexcept;
  void add(std::list<accepted_connection> one) noexcept { all_.splice(all_.end(), one); }
  void remove_ended() noexcept;
  void shutdown() noexcept;
  // Waits for their threads.
  void clear() { all_.clear(); }

 private:
  // A task's connections, and those of sources that ask for an outcome; and those whose peer is not
  // authenticated yet.
  static constexpr std::size_t max_connections = max_channels + 32, max_handshakes = 64,
                               max_handshakes_of_host = 16;
  std::size_t count(int state) const;
  std::list<accepted_connection> all_;
};

}  // namespace stillmap::migration
