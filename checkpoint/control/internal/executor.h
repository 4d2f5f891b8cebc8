// What a server does when it is asked: one thing at a time, all or nothing. Internal to server.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <span>

#include "stillmap/checkpoint/control/failure.h"
#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::control {

// Threads: safe.
class operations {
 public:
  operations(const device &d, const server_options &how);
  ~operations();

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
  // `told` as above, but `stop` is what gives up. The destination's, or undecided; else a failure.
  outcome<migrated> migrate(const migrate_request &r, const std::stop_token &stop,
                            const std::function<void(const migration::progress &)> &told);
  // Whose the memory of an undecided migration is.
  outcome<migrated> settle();
  // Gives up what is being done, and waits until it is over. What that was.
  // Errors: invalid_argument (nothing that can be given up: value = what is being done), busy (it
  //         was too late, or `stop`).
  outcome<request_kind> abort(const std::stop_token &stop);

 private:
  class turn;
  struct moving;
  using tags_view = std::span<const std::string>;
  // `stop`: gives up what can be given up, as abort() does.
  std::unique_ptr<turn> take_turn(request_kind k, const std::stop_token &stop = {});
  result<migration::send_options> how_to_send(const migrate_request &r) const;
  void note(const migration::progress &p);
  outcome<migrated> ended(std::unique_ptr<moving> m, const migration::sent_memory &sent);
  failure busy() const;
  outcome<void> check_live(tags_view tags, const char *op) const;
  status quiesce(tags_view tags, const std::stop_token &stop) const;
  void go_on(tags_view tags) const;
  result<checkpoint::suspender *> sleeper();
  job_status job() const;

  const device device_;
  const server_options &how_;
  mutable std::mutex mutex_;  // of what follows, never held for long
  std::condition_variable_any changed_;
  job_status job_;
  std::stop_source abort_;        // of the job
  std::uint64_t jobs_ended_ = 0;  // so many
  bool ended_well_ = false;       // the last one
  std::chrono::steady_clock::time_point begun_;
  std::map<std::string, checkpoint::keep_in> kept_;  // by tag, of what was suspended here
  std::shared_ptr<checkpoint::suspender> own_;       // touched by whoever has the turn
  std::unique_ptr<moving> undecided_;                // has the turn
  // What was sent without a number of its own and stayed, to be known by the same one again.
  std::string stayed_in_;  // a folder of records
  migration::task_id stayed_as_;
};

// While one lives, nobody else has one.
class operations::turn {
 public:
  turn(operations &of, const std::stop_token &stop)
      : of_(of), stopping_(stop, [&of] { of.abort_.request_stop(); }) {}
  turn(const turn &) = delete;
  ~turn();

  void went_well() { well_ = true; }

 private:
  operations &of_;
  const std::stop_callback<std::function<void()>> stopping_;
  bool well_ = false;
};

}  // namespace stillmap::control
