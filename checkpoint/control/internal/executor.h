// Executes the requests of a server: one at a time, each all or nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/control/server_options.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/checkpoint/snapshot/restore_contents.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"

namespace stillmap::control {

// Errors of all requests: busy (another one is being carried out: value = its request_kind; the
// memory is suspended), invalid_argument (no memory has the tag: the subject is the tag), the
// application's, and those of the library function that does the work.
// Threads: safe.
class executor {
 public:
  executor(const device &d, const server_options &options);
  ~executor();

  // Never waits for a request.
  // Cost: one driver call and the context switch.
  process_status status() const;
  job_status job() const STILLMAP_EXCLUDES(mutex_);

  result<checkpoint::suspended_tag> suspend(const suspend_request &r, std::stop_token stop);
  result<checkpoint::suspended_tag> resume(const resume_request &r);
  // `on_progress` is called by one thread at a time; false cancels.
  result<image::written> snapshot(
      const snapshot_request &r, std::stop_token stop,
      const std::function<bool(const snapshot_progress &)> &on_progress);
  // `on_progress` as of snapshot(); false cancels until the first byte is written.
  result<snapshot::restored_contents> restore(
      const restore_request &r, std::stop_token stop,
      const std::function<bool(const snapshot_progress &)> &on_progress);
  // `waits`: cancels it until the receiver listens.
  result<handoff::sent_memory> handoff(const handoff_request &r, std::stop_token stop,
                                       std::stop_token waits);
  // Ensures: success: the destination owns the task, or its ownership is in doubt.
  result<migration::sent_memory> migrate(
      const migrate_request &r, const std::stop_token &stop,
      const std::function<void(const migration::progress &)> &on_progress);
  // Learns the outcome of a migration in doubt.
  result<migration::sent_memory> resolve();
  // Cancels the current request and waits until it has ended; returns its kind.
  // Errors: invalid_argument (nothing can be cancelled: value = the current request), busy (too
  //         late), operation_canceled (`stop`).
  result<request_kind> abort(const std::stop_token &stop);

 private:
  class turn;
  struct active_migration;
  using tags_view = std::span<const std::string>;
  using suspended_stores = std::map<std::string, checkpoint::backing_store>;  // by tag
  // `stop` cancels the request, as abort() does. Errors: busy (another request has the turn).
  result<std::unique_ptr<turn>> take_turn(request_kind k, const std::stop_token &stop = {})
      STILLMAP_EXCLUDES(mutex_);
  tl::unexpected<error> busy_locked() const STILLMAP_REQUIRES(mutex_);
  job_status job_locked() const STILLMAP_REQUIRES(mutex_);
  // The tags that a request names, or all that this process has. Errors: invalid_argument (none).
  result<std::vector<std::string>> tags_for(bool all, std::vector<std::string> named) const;
  result<checkpoint::suspended_tag> suspend_each(tags_view tags,
                                                 const checkpoint::suspend_options &options,
                                                 checkpoint::suspender &with,
                                                 suspended_stores &entries);
  // For what gives the memory to another process.
  stillmap::status check_may_release() const;
  // Finds what would be refused anyway, before the application is stopped for it.
  stillmap::status check_mapped(tags_view tags) const;
  stillmap::status quiesce(tags_view tags, const std::stop_token &stop) const;
  void resume_task(tags_view tags) const;
  result<checkpoint::suspender *> get_suspender();
  result<migration::send_options> send_options_for(const migrate_request &r) const;
  void set_progress(const migration::progress &p) STILLMAP_EXCLUDES(mutex_);
  void set_progress(std::uint64_t done, std::uint64_t total) STILLMAP_EXCLUDES(mutex_);
  void finish(std::unique_ptr<active_migration> m, const migration::sent_memory &sent) noexcept
      STILLMAP_EXCLUDES(mutex_);

  const device device_;
  const server_options &options_;
  mutable mutex mutex_;
  std::condition_variable_any changed_;
  job_status job_ STILLMAP_GUARDED_BY(mutex_);
  std::stop_source cancel_ STILLMAP_GUARDED_BY(mutex_);  // of the job
  std::chrono::steady_clock::time_point begun_ STILLMAP_GUARDED_BY(mutex_);
  std::uint64_t jobs_ended_ STILLMAP_GUARDED_BY(mutex_) = 0;
  bool last_succeeded_ STILLMAP_GUARDED_BY(mutex_) = false;
  suspended_stores suspended_stores_ STILLMAP_GUARDED_BY(mutex_);
  std::unique_ptr<active_migration> in_doubt_ STILLMAP_GUARDED_BY(mutex_);
  // What follows belongs to the request that has the turn.
  std::shared_ptr<checkpoint::suspender> own_suspender_;
  // The last migration that failed, so that the task keeps its id the next time.
  std::string kept_records_;
  migration::task_id kept_id_;
};

// The right to carry out a request, from begin() on; at most one has it.
class executor::turn {
 public:
  explicit turn(executor &of) : held_{of} {}
  turn(const turn &) = delete;

  void begin(const std::stop_token &stop, std::stop_source cancel) {
    held_.begun = true;
    cancel_ = std::move(cancel);
    on_stop_.emplace(stop, forward{cancel_});
  }
  // Cancels the request, as abort() does.
  std::stop_source cancel() const { return cancel_; }
  void succeeded() { held_.succeeded = true; }

 private:
  // Given back after on_stop_ has ended: a late stop must not cancel the next job.
  struct held {
    executor &of;
    bool begun = false, succeeded = false;
    ~held();
  };
  struct forward {
    const std::stop_source &to;
    void operator()() const noexcept { to.request_stop(); }
  };
  held held_;
  std::stop_source cancel_{std::nostopstate};
  std::optional<std::stop_callback<forward>> on_stop_;
};

}  // namespace stillmap::control
