// stillmap slurm resume: all tasks of a job, as soon as the device has memory for them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/slurm/job_lock.h"
#include "tools/stillmap/slurm/job_tasks.h"
#include "tools/stillmap/slurm/slurm_commands.h"

namespace stillmap::tool {
namespace {

constexpr std::chrono::milliseconds first_interval{100}, last_interval{2'000};
constexpr double ten_years = 10 * 365 * 86400.0;  // in seconds: no timeout
// Of one attempt. What has not been resumed by then is suspended again, and tried again.
constexpr std::chrono::minutes attempt_timeout{10};

// What keeps the job from being resumed now; empty: nothing that is known. Half a job on a device would keep the memory
// that another half waits for, and copying it there and back at each attempt helps nobody.
std::string obstacle(const std::vector<job_task> &tasks) {
  std::map<std::string, std::uint64_t> missing;
  for (const job_task &t : tasks) {
    if (!t.answers) return printable(t.socket) + " does not answer";
    if (t.in_request) return printable(t.socket) + " carries out another request";
    missing[t.device] += t.suspended;
  }
  for (const job_task &t : tasks) {
    if (t.free != 0 && t.free < missing[t.device]) {
      return fmt::format("the device has {} free, and {} are needed", format_bytes(t.free),
                         format_bytes(missing[t.device]));
    }
  }
  return {};
}

class job_resumption {
 public:
  job_resumption(std::uint32_t job, double timeout)
      : job_(job), timeout_(timeout), until_(time_limit_in(timeout == 0 ? ten_years : timeout)) {}

  outcome<exit_status> run(const std::string &lock_file) {
    STILLMAP_ASSIGN_OR_RETURN(const auto lock,
                              job_lock::take(lock_file, job_, job_lock::holder_rule::wait, until_));
    for (auto interval = first_interval;; interval = std::min(2 * interval, last_interval)) {
      STILLMAP_ASSIGN_OR_RETURN(const auto tasks, find_job_tasks(job_));
      if (std::ranges::all_of(tasks, &job_task::is_resumed)) return print(tasks.size());
      reason_ = obstacle(tasks);
      if (reason_.empty() && ask(tasks)) continue;
      if (std::chrono::steady_clock::now() >= until_) {
        return fail(exit_busy,
                    fmt::format("{} not resumed in {}: {}", tasks_text(job_, tasks.size()),
                                human_seconds(timeout_), reason_));
      }
      std::this_thread::sleep_for(interval);
    }
  }

 private:
  bool ask(const std::vector<job_task> &tasks) {
    std::vector<std::string> sockets;
    for (const job_task &t : tasks) sockets.push_back(t.socket);
    const auto done = ask_each(sockets, {.suspends = false}, attempt_timeout, attempt_timeout);
    if (done) {
      bytes_ += bytes_of(*done);
    } else {
      reason_ = done.error().line;
    }
    return done.has_value();
  }

  outcome<exit_status> print(std::size_t tasks) const {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
    fmt::print("stillmap: ok: {} resumed: {} of device memory in {}\n", tasks_text(job_, tasks),
               format_bytes(bytes_), human_seconds(took.count()));
    return exit_ok;
  }

  const std::uint32_t job_;
  const double timeout_;
  const time_limit began_ = std::chrono::steady_clock::now(), until_;
  std::uint64_t bytes_ = 0;
  std::string reason_;
};

}  // namespace

outcome<exit_status> run_slurm_resume(const slurm_job_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const std::uint32_t job, job_number(o.job));
  return job_resumption(job, o.timeout).run(o.lock_file);
}

}  // namespace stillmap::tool
