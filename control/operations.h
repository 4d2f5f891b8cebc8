// What a server does when it is asked: one thing at a time, all or nothing. Internal to server.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <span>

#include "stillmap/control/failure.h"
#include "stillmap/control/requests.h"
#include "stillmap/control/server.h"
#include "stillmap/handoff/handoff.h"
#include "stillmap/image/writer.h"

namespace stillmap::control {

// Threads: safe.
class operations {
 public:
  operations(const device &d, const server_options &how) : device_(d), how_(how) {}

  // Never waits for what is under way. Cost: one call and the context switch.
  process_status now() const;

  // Errors of all: busy (another one is under way: value = its request_kind; the memory is
  // suspended), invalid_argument (no memory has the tag), the application's, and those of the
  // library's function.
  outcome<checkpoint::suspended_tag> suspend(const suspend_request &r, std::stop_token stop);
  outcome<checkpoint::suspended_tag> resume(const std::string &tag);
  // `told` is called by one thread at a time; false: give up.
  outcome<image::written> snapshot(const snapshot_request &r, std::stop_token stop,
                                   const std::function<bool(const snapshot_progress &)> &told);
  outcome<handoff::given_memory> give(const give_request &r, std::stop_token stop);

 private:
  class turn;
  using tags_view = std::span<const std::string>;
  std::optional<turn> take_turn(request_kind k);
  failure busy() const;
  outcome<void> check_live(tags_view tags, const char *op) const;
  status quiesce(tags_view tags, const std::stop_token &stop) const;
  void go_on(tags_view tags) const;
  result<checkpoint::suspender *> sleeper();
  job_status job() const;

  const device device_;
  const server_options &how_;
  mutable std::mutex mutex_;  // of what follows, never held for long
  job_status job_;
  std::chrono::steady_clock::time_point begun_;
  std::map<std::string, checkpoint::keep_in> kept_;  // by tag, of what was suspended here
  std::shared_ptr<checkpoint::suspender> own_;       // touched by whoever has the turn
};

}  // namespace stillmap::control
