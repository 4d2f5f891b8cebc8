// Byte streams between the two machines of a migration. tls.h implements them over TCP with TLS,
// checkpoint/ucx over UCX for data channels; implement these interfaces to use another network.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "stillmap/vmm/base/error.h"

namespace stillmap::migration {

// The authenticated identity of a peer.
struct peer_identity {
  std::string address;      // "192.0.2.7:4711"
  std::string name;         // the common name of its certificate
  std::string fingerprint;  // SHA-256 of its certificate, in hexadecimal
};

// One bidirectional, ordered byte stream.
// Threads: one thread may send while another receives.
class channel {
 public:
  virtual ~channel() = default;

  // Authenticates both ends. Must succeed before anything is sent or received.
  // Errors: as send(); not_supported (either end rejected the other's certificate).
  virtual status handshake(std::chrono::milliseconds timeout) = 0;
  // Whether the peer has begun the handshake. Of too many connections, a receiver closes the others
  // first.
  // Threads: any.
  virtual bool handshake_begun() const noexcept { return true; }
  // Before the handshake: only the address.
  virtual peer_identity peer() const = 0;
  // Whether nobody on the network can read what is sent. On a data channel without encryption no
  // digests are sent: who knows some can compute others.
  virtual bool encrypted() const noexcept { return true; }

  // Transfers all of `bytes`, or fills all of `into`.
  // Errors: busy (no progress for `timeout`), the system's (the connection is closed: EPIPE,
  //         ECONNRESET), corrupt (the data was modified in transit).
  virtual status send(std::span<const std::byte> bytes, std::chrono::milliseconds timeout) = 0;
  virtual status receive(std::span<std::byte> into, std::chrono::milliseconds timeout) = 0;

  // Announces that nothing more is sent, and discards what arrives until the peer closes or `timeout`
  // has passed. Only destruction may follow. TCP resets a connection that is closed with data unread,
  // and the peer may then lose what was sent last, such as a refusal.
  virtual void close_gracefully(std::chrono::milliseconds /*timeout*/) noexcept {}

  // Fails every current and future call, and ends a current close_gracefully().
  // Threads: any.
  virtual void shutdown() noexcept = 0;
};

// Connects a source to its destination.
// Threads: safe.
class transport {
 public:
  virtual ~transport() = default;
  // Returns a channel before its handshake.
  // Errors: the system's, busy (no answer within
  // `timeout`).
  virtual result<std::unique_ptr<channel>> connect(std::chrono::milliseconds timeout) = 0;
};

// Accepts connections at a destination.
class acceptor {
 public:
  virtual ~acceptor() = default;
  // Returns a channel before its handshake.
  // Errors: busy (no connection within `timeout`), the system's (after shutdown(): ECANCELED).
  virtual result<std::unique_ptr<channel>> accept(std::chrono::milliseconds timeout) = 0;
  // The address that sources connect to.
  virtual std::string address() const = 0;
  // Fails every current and future accept().
  // Threads: any.
  virtual void shutdown() noexcept = 0;
};

// Accepts the data channels of migrations over another transport than that of their control channels. The destination
// announces it to each source, on the authenticated control channel.
class data_acceptor : public acceptor {
 public:
  // The name of the transport: "ucx". 1 to 32 bytes; address() has at most 255, and neither has a space or a control
  // character. A source that has a data_connector of this name connects to address(), whose host may be "0.0.0.0" or
  // "[::]": then it is the one that the source has reached.
  virtual std::string transport_name() const = 0;
};

// Connects a source to data acceptors of one transport.
// Threads: safe.
class data_connector {
 public:
  virtual ~data_connector() = default;
  // As data_acceptor::transport_name().
  virtual std::string transport_name() const = 0;
  // A transport to `address`, which a destination has announced: any text.
  // Errors: invalid_argument (malformed address), not_supported, the system's.
  virtual result<std::unique_ptr<transport>> create_transport(const std::string &address) = 0;
};

}  // namespace stillmap::migration
