// Asks a process that runs a control::server. docs/control.md
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/control/failure.h"
#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::control {

struct client_options {
  handoff::patience reach{0};  // how long to try, where nobody listens yet
  // How long it may take to hear what is said, and to say what it holds. What it is asked to do
  // takes as long as it takes: that it has ended is noticed at once.
  handoff::patience wait{5'000};
  // Stops waiting; a snapshot, and a migration up to its intent, is then given up.
  std::stop_token cancel;
};

// Every call is a connection of its own.
// Errors of all: the other side's, whole; busy (nobody answers in time; another request is being
//                carried out; cancelled), corrupt (what answers makes no sense), the system's
//                (nobody is there, it is gone). What was asked for is done, or refused, or lost
//                with an asker: suspend, resume and give end even if nobody waits for them (see
//                status).
// Threads: safe.
class client {
 public:
  explicit client(std::string where, client_options how = {})
      : where_(std::move(where)), how_(std::move(how)) {}

  outcome<process_status> status() const;
  outcome<checkpoint::suspended_tag> suspend(const suspend_request &r) const;
  outcome<checkpoint::suspended_tag> resume(const std::string &tag) const;
  // `on_progress` now and then, on this thread; false: give up.
  outcome<image::written> snapshot(
      const snapshot_request &r,
      const std::function<bool(const snapshot_progress &)> &on_progress = {}) const;
  outcome<handoff::given_memory> give(const give_request &r) const;
  // As snapshot. Ensures: success: the memory is the destination's, or `undecided`: then nobody
  // runs it until settle() says whose it is. Failure: it is as it was.
  outcome<migrated> migrate(
      const migrate_request &r,
      const std::function<bool(const migration::progress &)> &on_progress = {}) const;
  // Whose an undecided migration's memory is, if that can be heard by now. `source`: it goes on
  // there. Errors: invalid_argument (nothing is undecided).
  outcome<migrated> settle() const;
  // Gives up the snapshot or the migration that is under way, and waits until it is over. Which.
  // Errors: invalid_argument (there is none), busy (it was too late: it is done, or undecided).
  outcome<request_kind> abort() const;

 private:
  const std::string where_;
  const client_options how_;
};

}  // namespace stillmap::control
