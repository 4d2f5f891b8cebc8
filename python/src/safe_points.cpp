#include "python/src/safe_points.h"

#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::python {

struct safe_points::this_thread {
  bool known = false;
  std::size_t inside = 0;  // calls of arrive() without a leave()

  ~this_thread() {
    safe_points &of = all();
    if (!known || of.born_.in_child()) return;
    const lock_guard lock(of.mutex_);
    --of.threads_;
    if (inside != 0) --of.arrived_;
    of.changed_.notify_all();
  }

  static this_thread &get() noexcept;
};

// Not inline: its variable would be a symbol that the linker has to keep.
safe_points::this_thread &safe_points::this_thread::get() noexcept {
  thread_local this_thread mine;
  return mine;
}

safe_points &safe_points::all() {
  static safe_points *const made = new safe_points;
  return *made;
}

bool safe_points::this_thread_is_known() noexcept {
  return this_thread::get().known;
}

void safe_points::add_this_thread() noexcept {
  if (born_.in_child()) return;
  const lock_guard lock(mutex_);
  this_thread::get().known = true;
  ++threads_;
}

void safe_points::changed_locked() noexcept {
  requested_.store(!holds_.empty(), std::memory_order_release);
  changed_.notify_all();
}

bool safe_points::any_closed_locked() const noexcept {
  for (const auto &[key, h] : holds_) {
    if (h.closed) return true;
  }
  return false;
}

void safe_points::arrive() noexcept {
  if (born_.in_child()) return;
  if (!this_thread_is_known()) add_this_thread();
  const lock_guard lock(mutex_);
  if (this_thread::get().inside++ != 0) return;
  ++arrived_;
  changed_.notify_all();
}

safe_points::outcome safe_points::leave(std::chrono::milliseconds most) noexcept {
  if (born_.in_child()) return outcome::open;
  unique_lock lock(mutex_);
  const bool over = changed_.wait_for(lock, most, [&]() STILLMAP_REQUIRES(mutex_) {
    return holds_.empty() || any_closed_locked();
  });
  if (!over) return outcome::waiting;
  if (--this_thread::get().inside == 0) --arrived_;
  return holds_.empty() ? outcome::open : outcome::closed;
}

void safe_points::begin_interrupt() noexcept {
  const lock_guard lock(mutex_);
  if (--this_thread::get().inside == 0) --arrived_;
  ++interrupted_;
  changed_.notify_all();
}

void safe_points::end_interrupt() noexcept {
  const lock_guard lock(mutex_);
  --interrupted_;
}

void safe_points::refuse(error why) noexcept {
  if (born_.in_child()) return;
  const lock_guard lock(mutex_);
  refusal_ = std::move(why);
  ++refusals_;
  changed_.notify_all();
}

std::vector<safe_points::hold> safe_points::holds() const {
  std::vector<hold> out;
  if (born_.in_child()) return out;
  const lock_guard lock(mutex_);
  for (const auto &[key, h] : holds_) out.push_back({key.first, key.second});
  return out;
}

namespace {

error not_in_time(std::size_t arrived, std::size_t threads, std::chrono::milliseconds timeout) {
  const auto ms = static_cast<std::uint64_t>(timeout.count());
  if (threads == 0) {
    return make_error(errc::busy,
                      "no thread of the program has passed a safe point: its loop has to call "
                      "stillmap.safe_point() in each step",
                      ms, ms, error_unit::milliseconds)
        .value();
  }
  return make_error(
             errc::busy,
             "the program did not reach a safe point in time: every thread that has called "
             "stillmap.safe_point() has to call it again, wait in stillmap.safe_region(), or "
             "end",
             ms, ms, error_unit::milliseconds)
      .value()
      .with({.found = std::to_string(arrived) + " of " + std::to_string(threads) + " threads"});
}

}  // namespace

// `added` has what was there before the request, which stays.
void safe_points::withdraw_locked(int device, tags_view tags, const holds_by_tag &added) noexcept {
  for (const std::string &tag : tags) {
    const std::pair<int, std::string_view> key(device, tag);
    if (added.find(key) != added.end()) continue;
    if (const auto mine = holds_.find(key); mine != holds_.end()) holds_.erase(mine);
  }
  changed_locked();
}

status safe_points::stop_threads(int device, tags_view tags, std::chrono::milliseconds timeout,
                                 const std::stop_token &stop) {
  return with_host_memory([&]() -> status {
    holds_by_tag added;
    for (const std::string &tag : tags) added.emplace(std::pair(device, tag), held{});
    unique_lock lock(mutex_);
    holds_.merge(added);
    changed_locked();
    const std::uint64_t before = refusals_;
    const auto is_refused = [&]() STILLMAP_REQUIRES(mutex_) {
      return interrupted_ != 0 || refusals_ != before;
    };
    const auto all_arrived = [&]() STILLMAP_REQUIRES(mutex_) {
      return threads_ != 0 && arrived_ == threads_;
    };
    (void)changed_.wait_for(lock, stop, timeout, [&]() STILLMAP_REQUIRES(mutex_) {
      return is_refused() || all_arrived();
    });
    if (all_arrived() && !is_refused()) return {};
    withdraw_locked(device, tags, added);
    if (refusals_ != before) return tl::unexpected(*refusal_);
    if (interrupted_ != 0) {
      return make_error(errc::busy, "a thread of the program was interrupted at its safe point");
    }
    if (stop.stop_requested()) {
      return make_error(errc::operation_canceled,
                        "the request was cancelled, or the server is being closed");
    }
    return tl::unexpected(not_in_time(arrived_, threads_, timeout));
  });
}

void safe_points::release(int device, std::string_view tag) noexcept {
  if (born_.in_child()) return;
  const lock_guard lock(mutex_);
  const auto found = holds_.find(std::pair<int, std::string_view>(device, tag));
  if (found == holds_.end()) return;
  holds_.erase(found);
  changed_locked();
}

void safe_points::close(int device) noexcept {
  if (born_.in_child()) return;
  const lock_guard lock(mutex_);
  for (auto &[key, h] : holds_) {
    if (key.first == device) h.closed = true;
  }
  changed_.notify_all();
}

}  // namespace stillmap::python
