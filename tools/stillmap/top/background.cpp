#include "tools/stillmap/top/background.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "stillmap/checkpoint/control/client.h"
#include "tools/stillmap/common/size.h"

namespace stillmap::tool {

view_updater::view_updater(machine_watch &watch, std::chrono::milliseconds interval)
    : watch_(watch), interval_(interval), thread_([this](const std::stop_token &s) { run(s); }) {}

outcome<machine_view> view_updater::look() {
  try {
    return watch_.look();
  } catch (const std::bad_alloc &) {
    return fail(exit_failed, "out of host memory");
  }
}

void view_updater::run(const std::stop_token &stop) {
  auto next = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    auto view = look();
    std::unique_lock lock(mutex_);
    trouble_ = view ? "" : view.error().line;
    if (view) latest_ = std::move(*view);
    next = std::max(next + interval_, std::chrono::steady_clock::now());
    changed_.wait_until(lock, stop, next, [] { return false; });
  }
}

std::optional<machine_view> view_updater::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(latest_, std::nullopt);
}

std::string view_updater::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void task_requests::start(const task_view &t, what w) {
  {
    const std::lock_guard lock(state_->mutex);
    const bool first = state_->sockets.insert(t.socket).second;
    state_->at = std::chrono::steady_clock::now();
    state_->message =
        !first ? fmt::format("a request to {} is under way", t.process.pid)
               : fmt::format("{} {}: under way", w == what::suspend ? "suspending" : "resuming",
                             t.process.pid);
    if (!first) return;
  }
  std::thread([state = state_, socket = t.socket, pid = t.process.pid, w] {
    const control::client task(socket);
    const auto done = w == what::suspend ? task.suspend({.all = true}) : task.resume_all();
    const std::string text =
        done ? fmt::format("{} of {}: {}", w == what::suspend ? "suspended" : "resumed", pid,
                           format_bytes(done->bytes))
             : failure(done.error().about(socket)).line;
    const std::lock_guard lock(state->mutex);
    state->message = text;
    state->at = std::chrono::steady_clock::now();
    state->sockets.erase(socket);
  }).detach();
}

std::string task_requests::message() const {
  constexpr std::chrono::seconds shown{5};
  const std::lock_guard lock(state_->mutex);
  const bool recent = std::chrono::steady_clock::now() - state_->at < shown;
  return recent ? state_->message : std::string();
}

}  // namespace stillmap::tool
