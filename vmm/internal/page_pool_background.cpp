// The background thread of a page_pool: makes pages ready and runs its users' jobs.
#include <new>
#include <system_error>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap {

void page_pool::keep_ready(std::size_t bytes) {
  const operation_scope scope("page_pool::keep_ready");
  unique_lock lock(background_mutex_);
  keep_ready_ = bytes;
  keep_ready_due_ = bytes != 0;
  if (bytes == 0) {
    return background_idle_.wait(
        lock, [this]() STILLMAP_REQUIRES(background_mutex_) { return !creating_; });
  }
  if (start_background_locked()) return;
  const lock_guard stats_lock(mutex_);
  ++stats_.background_failures;
}

status page_pool::in_background(const void *owner, std::function<void()> run) {
  return with_host_memory("page_pool::in_background", [&]() -> status {
    const lock_guard lock(background_mutex_);
    jobs_.push_back({owner, std::move(run)});
    const status started = start_background_locked();
    if (!started) jobs_.pop_back();
    return started;
  });
}

void page_pool::cancel_background(const void *owner) noexcept {
  unique_lock lock(background_mutex_);
  std::erase_if(jobs_, [&](const job &j) { return j.owner == owner; });
  background_idle_.wait(
      lock, [&]() STILLMAP_REQUIRES(background_mutex_) { return running_for_ != owner; });
}

status page_pool::start_background_locked() noexcept {
  try {
    if (!background_.joinable())
      background_ = start_thread<std::thread>([this] { run_background(); });
  } catch (const std::bad_alloc &) {
    return host_out_of_memory();
  } catch (const std::system_error &e) {
    return make_system_error(e.code().value(), "the thread cannot be started");
  }
  background_wake_.notify_one();
  return {};
}

void page_pool::run_background() {
  unique_lock lock(background_mutex_);
  for (;;) {
    background_wake_.wait(lock, [this]() STILLMAP_REQUIRES(background_mutex_) {
      return stopping_ || !jobs_.empty() || keep_ready_due_;
    });
    if (stopping_) return;
    if (!jobs_.empty()) {
      const job next = std::move(jobs_.front());
      jobs_.pop_front();
      running_for_ = next.owner;
      lock.unlock();
      next.run();
      lock.lock();
      running_for_ = nullptr;
      background_idle_.notify_all();
      continue;
    }
    // One page at a time: what is wanted may change meanwhile.
    keep_ready_due_ = false;
    creating_ = true;
    const std::size_t wanted = keep_ready_;
    lock.unlock();
    const auto more = [&] {
      const operation_scope scope("page_pool::keep_ready");  // a job has one of its own
      return prepare_one(wanted);
    }();
    if (!more) {
      const lock_guard stats_lock(mutex_);
      ++stats_.background_failures;
    }
    lock.lock();
    creating_ = false;
    keep_ready_due_ = keep_ready_due_ || (more && *more && keep_ready_ != 0);
    background_idle_.notify_all();
  }
}

}  // namespace stillmap
