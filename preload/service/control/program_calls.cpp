#include "preload/service/control/program_calls.h"

#include <atomic>

#include "preload/door.h"
#include "preload/service/control/wait_for_work.h"
#include "preload/service/memory/captures.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {
namespace {

using clock = std::chrono::steady_clock;

// Lets the calls of the program go on at the end of the scope.
class calls_held {
 public:
  explicit calls_held(bool here) noexcept : here_(here) {}
  ~calls_held() {
    if (here_) door::open();
  }
  calls_held(const calls_held &) = delete;
  void keep() noexcept { here_ = false; }

 private:
  bool here_;
};

status not_in_time(const char *what, std::chrono::milliseconds timeout) {
  const auto ms = static_cast<std::uint64_t>(timeout.count());
  return make_error(errc::busy, what, ms, ms, error_unit::milliseconds);
}

status cancelled() {
  return make_error(errc::operation_canceled,
                    "the request was cancelled, or the program ends: it goes on");
}

}  // namespace

program_calls &program_calls::all() noexcept {
  static undying<program_calls> calls;
  return *calls;
}

status program_calls::hold(int ordinal, tags_view tags, std::chrono::milliseconds timeout,
                           const std::stop_token &stop) {
  return with_host_memory([&]() -> status {
    held_tags added;
    for (const std::string &tag : tags) added.emplace(ordinal, tag);
    const auto deadline = clock::now() + timeout;
    std::atomic<bool> stopped{false};
    const std::stop_callback on_stop(stop, [&] { stopped.store(true); });
    const lock_guard lock(mutex_);
    if (ended_ || stop.stop_requested()) return cancelled();
    const bool is_first = held_.empty();
    if (is_first && !door::close(deadline, stopped)) {
      if (stopped.load()) return cancelled();
      return not_in_time(
          "a call of the program to the driver did not end in time: the program goes on", timeout);
    }
    calls_held until_idle(is_first);
    const status idle = [&]() -> status {
      // Waiting would invalidate it.
      if (captures::under_way()) {
        return make_error(
            errc::busy,
            "a stream of the program captures a graph: try again when the capture has ended");
      }
      const work_result work = wait_for_queued_work(ordinal, deadline, stop);
      if (work.outcome == work_outcome::late) {
        return not_in_time(
            "work that the program has queued did not end in time: the program goes on", timeout);
      }
      if (work.outcome == work_outcome::stopped) return cancelled();
      return work.failure;
    }();
    if (!idle) return idle;
    held_.merge(added);
    until_idle.keep();
    return {};
  });
}

void program_calls::release(int ordinal, tags_view tags) noexcept {
  const lock_guard lock(mutex_);
  if (held_.empty()) return;
  for (auto h = held_.begin(); h != held_.end();) {
    bool named = false;
    for (const std::string &tag : tags) named = named || (h->first == ordinal && h->second == tag);
    h = named ? held_.erase(h) : std::next(h);
  }
  if (held_.empty()) door::open();
}

void program_calls::end() noexcept {
  const lock_guard lock(mutex_);
  ended_ = true;
  held_.clear();
  door::open();
}

}  // namespace stillmap::preload
