#include "stillmap/allocators/kv/cache_offer.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv {

// What others ask for, and what they hear.
// Threads: safe. Its lock is held across no call.
class cache_offer::requests {
 public:
  struct bytes {
    std::uint64_t free = 0;       // of memory without contents
    std::uint64_t evictable = 0;  // of any
  };

  std::uint64_t note_or_answer(reclaim_kind kind, std::uint64_t wanted) {
    const lock_guard lock(mutex_);
    if (released_) return std::exchange(*released_, 0);
    (kind == reclaim_kind::cached ? free_ : evictable_).store(wanted, std::memory_order_relaxed);
    return reclaim_later;
  }
  bytes noted() const {
    return {free_.load(std::memory_order_relaxed), evictable_.load(std::memory_order_relaxed)};
  }
  void note(bytes b) {
    const lock_guard lock(mutex_);
    free_.store(b.free, std::memory_order_relaxed);
    evictable_.store(b.evictable, std::memory_order_relaxed);
  }
  void begin_answer(std::uint64_t released) {
    const lock_guard lock(mutex_);
    released_ = released;
  }
  // A question that came meanwhile, while another thread answered, is asked again.
  void end_answer() {
    const lock_guard lock(mutex_);
    released_.reset();
    free_.store(0, std::memory_order_relaxed);
    evictable_.store(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> free_{0}, evictable_{0};
  mutex mutex_;
  std::optional<std::uint64_t> released_ STILLMAP_GUARDED_BY(mutex_);  // while it answers
};

result<std::unique_ptr<cache_offer>> cache_offer::create(std::shared_ptr<memory_quota> quota) {
  return with_host_memory("kv::cache_offer::create", [&]() -> result<std::unique_ptr<cache_offer>> {
    if (quota == nullptr) return make_error(errc::invalid_argument, "no quota was given");
    std::unique_ptr<cache_offer> made(
        new cache_offer(std::move(quota), std::make_shared<requests>()));
    const auto offer = [&](reclaim_kind kind) {
      return made->quota_->add_reclaimer(kind, [to = made->requests_, kind](std::uint64_t wanted) {
        return to->note_or_answer(kind, wanted);
      });
    };
    made->cached_ = offer(reclaim_kind::cached);
    made->evictable_ = offer(reclaim_kind::evictable);
    if (made->cached_ != nullptr && made->evictable_ != nullptr) return made;
    return make_error(errc::not_supported, "the quota asks nobody for memory");
  });
}

cache_offer::cache_offer(std::shared_ptr<memory_quota> quota, std::shared_ptr<requests> r)
    : quota_(std::move(quota)), requests_(std::move(r)) {}

cache_offer::~cache_offer() {
  cached_.reset();
  evictable_.reset();
  if (wanted() == 0) return;
  const auto told = quota_->retry_reclaim();
  // A forked child of the participant tells nobody.
  if (!told && !told.error().is(errc::not_supported)) report_background_error(told.error());
}

std::uint64_t cache_offer::wanted() const noexcept {
  const requests::bytes b = requests_->noted();
  return std::max(b.free, b.evictable);
}

// give(bytes, whether contents may go).
template <class Give>
result<std::size_t> cache_offer::answer(const Give &give) {
  const requests::bytes before = requests_->noted();
  // Who still asks does so again.
  requests_->note({});
  if (const auto asked = quota_->retry_reclaim(); !asked) {
    requests_->note(before);
    return tl::unexpected(asked.error());
  }
  const requests::bytes now = requests_->noted();
  const std::uint64_t bytes = std::max(now.free, now.evictable);
  if (bytes == 0) return std::size_t{0};
  STILLMAP_ASSIGN_OR_RETURN(const std::size_t given, give(bytes, now.evictable != 0));
  requests_->begin_answer(given);
  const auto told = quota_->retry_reclaim();
  requests_->end_answer();
  if (!told) report_background_error(told.error());
  return given;
}

result<std::size_t> cache_offer::give(block_arena &arena, std::size_t keep,
                                      std::vector<block_id> &evicted) {
  const operation_scope scope("kv::cache_offer::give");
  return answer([&](std::size_t bytes, bool with_contents) {
    return arena.give_back(bytes, keep, with_contents ? &evicted : nullptr);
  });
}

result<std::size_t> cache_offer::give(sequence_arena &arena, std::span<const sequence_id> cached,
                                      std::vector<sequence_id> &removed) {
  const operation_scope scope("kv::cache_offer::give");
  return answer([&](std::size_t bytes, bool with_contents) {
    return arena.give_back(bytes, with_contents ? cached : std::span<const sequence_id>(), removed);
  });
}

}  // namespace stillmap::kv
