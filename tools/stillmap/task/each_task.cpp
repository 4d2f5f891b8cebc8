#include "tools/stillmap/task/each_task.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <stop_token>
#include <thread>

#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

// What tasks answer that are asked at the same time, until a deadline.
class concurrent_requests {
 public:
  concurrent_requests(const std::vector<std::string> &sockets, const task_request &request,
                      std::chrono::milliseconds timeout)
      : timeout_(timeout), answers_(sockets.size()) {
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      threads_.emplace_back([this, &socket = sockets[i], &answer = answers_[i], &request, timeout] {
        control::client_options options;
        options.timeout = 2 * timeout;  // given up before
        options.cancel = given_up_.get_token();
        answer = request(control::client(socket, options));
        const std::lock_guard lock(mutex_);
        ++answered_;
        changed_.notify_all();
      });
    }
  }

  // Gives up those that have not answered by then. One answer for each task.
  std::vector<std::optional<task_answer>> &wait() {
    {
      std::unique_lock lock(mutex_);
      (void)changed_.wait_for(lock, timeout_, [&] { return answered_ == answers_.size(); });
    }
    given_up_.request_stop();
    threads_.clear();
    return answers_;
  }

 private:
  const std::chrono::milliseconds timeout_;
  std::stop_source given_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t answered_ = 0;  // guarded by mutex_
  std::vector<std::optional<task_answer>> answers_;
  std::vector<std::jthread> threads_;  // destroyed first
};

std::vector<std::string> undo(const std::vector<std::string> &done, const all_or_none &what) {
  std::vector<std::string> left;
  concurrent_requests asked(done, what.inverse, what.timeout);
  const auto &answers = asked.wait();
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (!*answers[i]) left.push_back(done[i]);
  }
  return left;
}

}  // namespace

outcome<std::vector<answered_task>> ask_each(const std::vector<std::string> &sockets,
                                             const all_or_none &what) {
  std::vector<answered_task> out;
  std::vector<std::string> may_be_done;  // also by one that was given up while it did so
  std::optional<failure> failed;
  {
    concurrent_requests asked(sockets, what.request, what.timeout);
    const auto &answers = asked.wait();
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      const task_answer &a = *answers[i];
      const bool given_up = !a && a.error().code == std::errc::operation_canceled;
      if (a ? a->has_value() : given_up) may_be_done.push_back(sockets[i]);
      if (a) {
        out.push_back({sockets[i], *a});
      } else if (!failed) {
        failed = given_up ? failure(exit_busy, fmt::format("{}: no answer in {} s", sockets[i],
                                                           what.timeout.count() / 1000.0))
                          : failure(a.error().about(sockets[i]));
      }
    }
  }
  if (!failed) return out;
  const auto left = undo(may_be_done, what);
  return fail(failed->status,
              failed->line + (left.empty() ? std::string("; every other task is as it was")
                                           : "; what has come of it in " + join(left, ", ") +
                                                 " is not known"));
}

}  // namespace stillmap::tool
