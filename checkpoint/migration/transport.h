// Streams of bytes between two machines, behind a seam: TCP with TLS is in tls.h, other networks
// can be had by whoever implements these.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "stillmap/vmm/error.h"

namespace stillmap::migration {

using patience = std::chrono::milliseconds;

// Who is at the other end, as far as that was proven.
struct peer {
  std::string where;        // "192.0.2.7:4711"
  std::string name;         // of its certificate
  std::string fingerprint;  // SHA-256 of its certificate, in hexadecimal
};

// One stream of bytes, in order, both ways. Threads: one may send while another receives.
class channel {
 public:
  virtual ~channel() = default;
  // Before anything else: finds out who is there. Errors: as send, and not_supported (it is not who
  // it should be, or does not believe that we are).
  virtual status open(patience wait) = 0;
  virtual peer who() const = 0;
  // All of it. Errors: busy (nothing moved for `wait`), the system's (the link is cut: EPIPE,
  // ECONNRESET), corrupt (what came was not what was sent).
  virtual status send(std::span<const std::byte> bytes, patience wait) = 0;
  virtual status receive(std::span<std::byte> into, patience wait) = 0;
  // From any thread: whatever is under way and whatever comes fails.
  virtual void cut() noexcept = 0;
};

// How a source gets to its destination. Threads: safe.
class transport {
 public:
  virtual ~transport() = default;
  // Not open yet. Errors: the system's, busy (nobody answered for `wait`).
  virtual result<std::unique_ptr<channel>> connect(patience wait) = 0;
};

// Where a destination is found.
class acceptor {
 public:
  virtual ~acceptor() = default;
  // Not open yet. Errors: busy (nobody came), the system's (cut: ECANCELED).
  virtual result<std::unique_ptr<channel>> accept(patience wait) = 0;
  virtual std::string where() const = 0;
  virtual void cut() noexcept = 0;  // from any thread
};

}  // namespace stillmap::migration
