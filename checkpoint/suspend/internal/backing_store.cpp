#include "stillmap/checkpoint/suspend/internal/backing_store.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/start_thread.h"

namespace stillmap::checkpoint {
namespace {

// Large enough to amortise the call, small enough to give work to all streams.
constexpr std::size_t copy_bytes = std::size_t{64} << 20;

// Calls work(part, stream) for every part, on one thread for each stream, or on fewer where the
// system cannot create them; stops at the first failure.
template <class Work>
status for_each_part(std::size_t streams, std::span<const piece> pieces, std::size_t part_bytes,
                     Work work) {
  const part_sequence all(pieces, part_bytes);
  const std::size_t wanted = std::min(streams, all.size());
  struct {
    stillmap::mutex mutex;
    part_sequence parts STILLMAP_GUARDED_BY(mutex);
    status outcome STILLMAP_GUARDED_BY(mutex);
  } shared{{}, all, {}};
  const auto run = [&, operation = operation_scope::current()](std::size_t stream) noexcept {
    const operation_scope scope(operation);
    for (;;) {
      std::optional<piece> part;
      {
        const lock_guard lock(shared.mutex);
        if (shared.outcome) part = shared.parts.next();
      }
      if (!part) return;
      const status s = with_host_memory([&] { return work(*part, stream); });
      if (s) continue;
      const lock_guard lock(shared.mutex);
      if (shared.outcome) shared.outcome = s;
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(wanted);
    for (std::size_t stream = 1; stream < wanted; ++stream) {
      threads.push_back(start_thread<std::thread>(run, stream));
    }
  } catch (const std::bad_alloc &) {
  } catch (const std::system_error &) {
  }
  run(0);
  for (std::thread &t : threads) t.join();
  const lock_guard lock(shared.mutex);
  return std::move(shared.outcome);
}

}  // namespace

status pinned_store::save(batch_copier &copier, std::span<const piece> pieces) {
  return copier.copy(direction::to_host, pieces, memory_.data(), copy_bytes);
}

status pinned_store::load(batch_copier &copier, std::span<const piece> pieces) {
  return copier.copy(direction::to_device, pieces, memory_.data(), copy_bytes);
}

status file_store::save(batch_copier &copier, std::span<const piece> pieces) {
  return for_each_part(copier.streams(), pieces, buffer_bytes_,
                       [&](const piece &p, std::size_t stream) {
                         std::byte *const buffer = buffers_.data() + stream * buffer_bytes_;
                         status s = copier.start(direction::to_host, p.range, buffer, stream);
                         if (s) s = copier.wait(stream);
                         if (s) s = file_.write(buffer, p.range.bytes, p.offset);
                         return s;
                       });
}

status file_store::load(batch_copier &copier, std::span<const piece> pieces) {
  return for_each_part(copier.streams(), pieces, buffer_bytes_,
                       [&](const piece &p, std::size_t stream) {
                         std::byte *const buffer = buffers_.data() + stream * buffer_bytes_;
                         status s = file_.read(buffer, p.range.bytes, p.offset);
                         if (s) s = copier.start(direction::to_device, p.range, buffer, stream);
                         if (s) s = copier.wait(stream);
                         return s;
                       });
}

}  // namespace stillmap::checkpoint
