#include "stillmap/checkpoint/suspend/evictable_memory.h"

#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {

class evictable_memory::state {
 public:
  state(std::string tag, std::shared_ptr<memory_quota> quota, suspend_options how,
        std::unique_ptr<suspender> s)
      : tag_(std::move(tag)),
        quota_(std::move(quota)),
        how_(std::move(how)),
        suspender_(std::move(s)) {}

  status offer() {
    registration_ = quota_->add_reclaimer(reclaim_kind::evictable,
                                          [this](std::uint64_t /*bytes*/) { return evict(); });
    if (registration_ != nullptr) return {};
    return make_error(errc::not_supported, "the quota asks nobody for memory");
  }

  status enter() {
    unique_lock lock(mutex_);
    changed_.wait(lock, [&]() STILLMAP_REQUIRES(mutex_) {
      return is_ == phase::resident || is_ == phase::evicted;
    });
    if (is_ == phase::evicted) {
      is_ = phase::resuming;
      const std::uint64_t bytes = suspended_bytes_;
      lock.unlock();
      const status done = resume(bytes);
      lock.lock();
      is_ = done ? phase::resident : phase::evicted;
      changed_.notify_all();
      if (!done) return done;
      ++figures_.resumes;
    }
    ++inside_;
    return {};
  }

  void leave() noexcept {
    {
      const lock_guard lock(mutex_);
      if (--inside_ != 0 || !std::exchange(was_asked_, false)) return;
    }
    const auto given = quota_->retry_reclaim();
    if (!given) report_background_error(given.error());
  }

  figures stats() const {
    const lock_guard lock(mutex_);
    figures out = figures_;
    out.evicted = is_ == phase::evicted || is_ == phase::resuming;
    return out;
  }

 private:
  enum class phase : std::uint8_t { resident, evicting, evicted, resuming };

  // All of the tag or nothing. Returns the bytes.
  std::uint64_t evict() noexcept {
    {
      const lock_guard lock(mutex_);
      if (is_ != phase::resident) return 0;
      if (inside_ != 0) {
        was_asked_ = true;
        return reclaim_later;
      }
      is_ = phase::evicting;
    }
    const auto gone = suspender_->suspend(tag_, how_);
    const lock_guard lock(mutex_);
    is_ = gone ? phase::evicted : phase::resident;
    changed_.notify_all();
    // A tag without memory, one that another suspends or saves, or a stream that captures: not now.
    if (!gone) return 0;
    suspended_bytes_ = gone->bytes;
    ++figures_.evictions;
    figures_.evicted_bytes += gone->released.bytes();
    return gone->released.bytes();
  }

  // It may be that the device does not have what the quota has given: then the others are asked once more.
  status resume(std::uint64_t bytes) {
    for (bool again : {false, true}) {
      STILLMAP_RETURN_IF_ERROR(quota_->make_room(bytes));
      const auto back = suspender_->resume(tag_);
      quota_->end_room();
      if (back) return {};
      if (again || !back.error().is(errc::out_of_memory)) {
        return tl::unexpected<error>(back.error());
      }
    }
    return {};
  }

  const std::string tag_;
  const std::shared_ptr<memory_quota> quota_;
  const suspend_options how_;
  const std::unique_ptr<suspender> suspender_;
  mutable mutex mutex_;
  condition_variable changed_;
  phase is_ STILLMAP_GUARDED_BY(mutex_) = phase::resident;
  int inside_ STILLMAP_GUARDED_BY(mutex_) = 0;
  bool was_asked_ STILLMAP_GUARDED_BY(mutex_) = false;  // while somebody was inside
  std::uint64_t suspended_bytes_ STILLMAP_GUARDED_BY(mutex_) = 0;
  figures figures_ STILLMAP_GUARDED_BY(mutex_);
  std::unique_ptr<reclaimer_registration> registration_;  // ends before what it calls
};

evictable_memory::evictable_memory(std::unique_ptr<state> s) : state_(std::move(s)) {}
evictable_memory::~evictable_memory() = default;

result<std::unique_ptr<evictable_memory>> evictable_memory::create(
    const device &d, std::string tag, std::shared_ptr<memory_quota> quota,
    evictable_memory_options options) {
  return with_host_memory(
      "evictable_memory::create", [&]() -> result<std::unique_ptr<evictable_memory>> {
        if (quota == nullptr) return make_error(errc::invalid_argument, "no quota was given");
        STILLMAP_ASSIGN_OR_RETURN(auto s, suspender::create(d, options.suspender));
        auto made = std::make_unique<state>(std::move(tag), std::move(quota),
                                            std::move(options.suspension), std::move(s));
        STILLMAP_RETURN_IF_ERROR(made->offer());
        return std::unique_ptr<evictable_memory>(new evictable_memory(std::move(made)));
      });
}

status evictable_memory::enter() {
  return with_host_memory("evictable_memory::enter", [&] { return state_->enter(); });
}

void evictable_memory::leave() noexcept {
  state_->leave();
}

evictable_memory::figures evictable_memory::stats() const {
  return state_->stats();
}

}  // namespace stillmap::checkpoint
