// stillmap slurm suspend: all tasks of a job, or none.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/slurm/job_lock.h"
#include "tools/stillmap/slurm/job_tasks.h"
#include "tools/stillmap/slurm/slurm_commands.h"

namespace stillmap::tool {
namespace {

constexpr std::chrono::milliseconds suspend_interval{50};
// Of attempts before the last. slurmd waits for twice its timeout, and so much longer.
constexpr std::chrono::seconds last_undo_timeout{10};

class job_suspension {
 public:
  job_suspension(std::uint32_t job, time_limit until, double timeout)
      : job_(job), until_(until), undo_timeout_(static_cast<std::int64_t>(timeout * 1000)) {}

  outcome<exit_status> run() {
    for (;; std::this_thread::sleep_for(suspend_interval)) {
      const auto found = find_job_tasks(job_);
      if (!found) {
        undo();
        return tl::unexpected(found.error());
      }
      const auto &tasks = *found;
      if (std::ranges::all_of(tasks, &job_task::is_suspended)) return print(tasks.size());
      // None is asked before all answer, so that one that hangs costs the others nothing.
      const auto silent = std::ranges::find(tasks, false, &job_task::answers);
      if (silent != tasks.end()) {
        failed_ = failure(exit_busy, printable(silent->socket) + " does not answer");
      } else {
        ask(tasks);
      }
      if (is_final_ || until_ - std::chrono::steady_clock::now() <= suspend_interval) {
        undo();
        return fail(failed_ ? failed_->status : exit_busy,
                    fmt::format("{} cannot be suspended: {}", tasks_text(job_, tasks.size()),
                                failed_ ? failed_->line : "memory is mapped again"));
      }
    }
  }

 private:
  // Tasks that are busy may not be a moment later, and one that has ended is not found again: any other failure is
  // final if it repeats itself.
  void ask(const std::vector<job_task> &tasks) {
    std::vector<std::string> sockets;
    for (const job_task &t : tasks) sockets.push_back(t.socket);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until_ - std::chrono::steady_clock::now());
    const auto done =
        ask_each(sockets, request_, std::max(left, std::chrono::milliseconds(1)), undo_timeout_);
    if (done) {
      bytes_ += bytes_of(*done);
      done_.insert(done_.end(), done->begin(), done->end());
      failed_.reset();
      return;
    }
    const bool repeats = failed_ && failed_->status == done.error().status;
    is_final_ = repeats && done.error().status != exit_busy;
    const auto before = std::exchange(failed_, done.error());
    // The last attempt may have had no time to hear why.
    const bool is_last = std::chrono::steady_clock::now() >= until_;
    if (is_last && before && before->line != failed_->line)
      failed_->line += "; before that: " + before->line;
  }

  // Of the rounds before the last.
  void undo() {
    const std::string unknown = undo_each(done_, request_, last_undo_timeout);
    if (failed_) failed_->line += unknown;
  }

  outcome<exit_status> print(std::size_t tasks) const {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
    fmt::print("stillmap: ok: {} suspended: {} of device memory in {}\n", tasks_text(job_, tasks),
               format_bytes(bytes_), human_seconds(took.count()));
    return exit_ok;
  }

  const tag_request request_{};
  const std::uint32_t job_;
  const time_limit began_ = std::chrono::steady_clock::now(), until_;
  // As long as all attempts together: the last one may begin just before their end.
  const std::chrono::milliseconds undo_timeout_;
  std::vector<answered_task> done_;
  std::uint64_t bytes_ = 0;
  std::optional<failure> failed_;
  bool is_final_ = false;
};

}  // namespace

outcome<exit_status> run_slurm_suspend(const slurm_job_options &o) {
  const time_limit until = time_limit_in(o.timeout);
  STILLMAP_ASSIGN_OR_RETURN(const std::uint32_t job, job_number(o.job));
  // A resume that waits for memory is over; and so is a suspend that a slurmd has left behind.
  STILLMAP_ASSIGN_OR_RETURN(const auto lock,
                            job_lock::take(o.lock_file, job, job_lock::holder_rule::end, until));
  return job_suspension(job, until, o.timeout).run();
}

}  // namespace stillmap::tool
