#include "stillmap/checkpoint/snapshot/internal/digest_prefetch.h"

#include <new>
#include <span>
#include <system_error>

#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {

digest_prefetch::digest_prefetch(const device &d, std::vector<virtual_range> chunks,
                                 const image::digest_key &key, std::size_t part_bytes)
    : device_(d), chunks_(std::move(chunks)), key_(key), part_bytes_(part_bytes) {
  // Without memory or a thread, chunks are read instead.
  try {
    known_.reserve(chunks_.size());
    thread_ =
        start_thread([this, operation = operation_scope::current()](const std::stop_token &stop) {
          const operation_scope scope(operation);
          run(stop);
        });
  } catch (const std::system_error &) {
    over_ = true;
  } catch (const std::bad_alloc &) {
    over_ = true;
  }
}

std::optional<image::digest> digest_prefetch::of(std::size_t i) {
  unique_lock lock(mutex_);
  progressed_.wait(lock, [&]() STILLMAP_REQUIRES(mutex_) { return over_ || i < known_.size(); });
  if (i >= known_.size()) return std::nullopt;
  return known_[i];
}

std::size_t digest_prefetch::end_of_part(std::size_t first) const {
  std::size_t end = first;
  for (std::size_t bytes = 0; end < chunks_.size() && bytes < part_bytes_; ++end) {
    bytes += chunks_[end].bytes;
  }
  return end;
}

void digest_prefetch::run(const std::stop_token &stop) noexcept {
  // After a failure chunks are read instead.
  (void)with_host_memory([&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(auto with, chunk_digester::create(device_, key_));
    for (std::size_t first = 0, end = 0; first < chunks_.size(); first = end) {
      end = end_of_part(first);
      STILLMAP_ASSIGN_OR_RETURN(const auto made,
                                with.digests_of(std::span(chunks_).subspan(first, end - first)));
      const lock_guard lock(mutex_);
      if (stop.stop_requested()) break;
      known_.insert(known_.end(), made.begin(), made.end());
      progressed_.notify_all();
    }
    return {};
  });
  const lock_guard lock(mutex_);
  over_ = true;
  progressed_.notify_all();
}

}  // namespace stillmap::snapshot
