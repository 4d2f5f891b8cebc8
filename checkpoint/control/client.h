// Client of a control::server. docs/control.md
#pragma once

#include <chrono>
#include <functional>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/checkpoint/snapshot/restore_contents.h"

namespace stillmap::control {

struct client_options {
  // How long to retry if no process listens at the address yet.
  std::chrono::milliseconds connect_timeout{0};
  // How long sending a request, and a response to status(), may take. Other requests take as long
  // as they take; a process that dies meanwhile is noticed at once.
  std::chrono::milliseconds timeout{5'000};
  // Stops waiting. A snapshot, a restore that has not begun to write, a handoff whose receiver does not listen, and a migration whose intent is
  // not on record, is then cancelled.
  std::stop_token cancel;
};

// Every call uses a connection of its own.
//
// Errors of the controlled process compare equal to the same codes as there; detail().subject is
// the address, and detail().cause the error's message there. In addition: busy (no response in
// time; another request is being carried out), operation_canceled (also: abort() was called),
// corrupt (a malformed response), the system's (no process listens; it has died). Suspend, resume
// and handoff to a receiver that listens complete even if the client goes away: status() tells. Only a
// request that has not begun by then is not carried out.
// Threads: safe.
class client {
 public:
  explicit client(std::string address, client_options options = {})
      : address_(std::move(address)), options_(std::move(options)) {}

  result<process_status> status() const;
  // `all` sums up: the tag in the response is empty. If one of them fails, those before it are
  // resumed.
  result<checkpoint::suspended_tag> suspend(const suspend_request &r) const;
  result<checkpoint::suspended_tag> resume(const std::string &tag) const;
  // Resumes all tags that the process's suspender has. If one of them fails, it and those after it
  // stay suspended.
  result<checkpoint::suspended_tag> resume_all() const;
  // Calls `on_progress` a few times a second, on this thread.
  result<image::written> snapshot(
      const snapshot_request &r,
      const std::function<void(const snapshot_progress &)> &on_progress = {}) const;
  // Writes the contents of an image into the memory that the process has at its addresses. Calls
  // `on_progress` as snapshot() does: `verifying` while the image is checked and the process runs.
  // Ensures: failure: nothing changed. But if it failed after the first byte was written, which the
  //          message says, the contents of that memory are unspecified; the process goes on.
  // Errors:  invalid_argument (its memory is not where the image's was: value = the first such
  //          address), and the other errors of snapshot::restore_contents.
  result<snapshot::restored_contents> restore(
      const restore_request &r,
      const std::function<void(const snapshot_progress &)> &on_progress = {}) const;
  result<handoff::sent_memory> handoff(const handoff_request &r) const;
  // Calls `on_progress` as snapshot() does.
  // Ensures: success: the destination owns the task, or its ownership is in doubt: then it stays
  //          stopped until resolve(). Failure: the task is as it was.
  result<migration::sent_memory> migrate(
      const migrate_request &r,
      const std::function<void(const migration::progress &)> &on_progress = {}) const;
  // Learns the outcome of a migration in doubt, if the destination can be reached. With `source`
  // as the owner, the task has been resumed.
  // Errors: invalid_argument (no migration is in doubt).
  result<migration::sent_memory> resolve() const;
  // Cancels the current snapshot, restore or migration, whichever client requested it, and waits until it
  // has ended. Returns what was cancelled.
  // Errors: invalid_argument (nothing can be cancelled), busy (too late: it has completed, or is
  //         in doubt).
  result<request_kind> abort() const;

 private:
  const std::string address_;
  const client_options options_;
};

}  // namespace stillmap::control
