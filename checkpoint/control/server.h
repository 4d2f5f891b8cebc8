// Controls a running process over a Unix socket: status, suspend, resume, snapshot, handoff,
// migration. docs/control.md; docs/control_protocol.md has the messages.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/control/server_options.h"
#include "stillmap/vmm/device.h"

namespace stillmap::control {

// Serves requests while it exists, with one sleeping thread and one thread for each connection.
//
// Status is always answered. All other requests run one at a time; a request that arrives
// meanwhile is refused as busy. A request that fails leaves everything as it was.
// Threads: safe.
// Fork:    the child has no server: its copy can be destroyed, which does nothing.
class server {
 public:
  // Listens at `address`: a path, or an abstract name after '@'. Replaces a socket that a dead
  // process has left behind.
  // Errors: busy (a process listens there; another process has held the file PATH.lock for 2 s, or
  //         another user owns it), invalid_argument (malformed address; no connections allowed), the system's.
  // Cost:   no driver call.
  static result<server> create(const device &d, const std::string &address,
                               server_options options = {});
  server(server &&) noexcept;
  server &operator=(server &&) = delete;
  // Waits for the current request. A snapshot, a handoff that is not offered yet, and a migration
  // whose intent is not on record are cancelled; suspend and resume complete. A migration in doubt
  // stays stopped, with `intent` on record: migration::sender::resolve() learns its outcome.
  ~server();

  const std::string &address() const;
  // The request that is being carried out. Cost: no driver call.
  job_status job() const;
  // Cancels it, as client::abort() does; not from a callback. Errors: as client::abort().
  result<request_kind> abort();

 private:
  class core;
  explicit server(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::control
