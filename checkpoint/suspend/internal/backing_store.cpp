#include "stillmap/checkpoint/suspend/internal/backing_store.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace stillmap::checkpoint {
namespace {

// Large enough that a call costs nothing beside it, small enough that all streams have some.
constexpr std::size_t copy_part = std::size_t{64} << 20;

// Calls work(part, lane) for every part, on a thread for each lane; the first failure ends it.
template <class Work>
status on_lanes(std::size_t lanes, std::span<const piece> pieces, std::size_t part_bytes,
                Work work) {
  const std::vector<piece> parts = in_parts(pieces, part_bytes);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  status outcome;
  const auto run = [&](std::size_t lane) {
    for (std::size_t i = next++; i < parts.size() && !failed; i = next++) {
      const status s = work(parts[i], lane);
      if (s) continue;
      failed = true;
      const std::lock_guard lock(mutex);
      if (outcome) outcome = s;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t lane = 1; lane < std::min(lanes, parts.size()); ++lane) {
    threads.emplace_back(run, lane);
  }
  run(0);
  for (std::thread &t : threads) t.join();
  return outcome;
}

}  // namespace

status pinned_contents::save(transfer &by, std::span<const piece> pieces) {
  return by.copy(direction::to_host, pieces, arena_.data(), copy_part);
}

status pinned_contents::load(transfer &by, std::span<const piece> pieces) {
  return by.copy(direction::to_device, pieces, arena_.data(), copy_part);
}

status file_contents::save(transfer &by, std::span<const piece> pieces) {
  return on_lanes(by.streams(), pieces, buffer_bytes_, [&](const piece &p, std::size_t lane) {
    std::byte *const buffer = buffers_.data() + lane * buffer_bytes_;
    status s = by.start(direction::to_host, p.range, buffer, lane);
    if (s) s = by.wait(lane);
    if (s) s = file_.write(buffer, p.range.bytes, p.offset);
    return s;
  });
}

status file_contents::load(transfer &by, std::span<const piece> pieces) {
  return on_lanes(by.streams(), pieces, buffer_bytes_, [&](const piece &p, std::size_t lane) {
    std::byte *const buffer = buffers_.data() + lane * buffer_bytes_;
    status s = file_.read(buffer, p.range.bytes, p.offset);
    if (s) s = by.start(direction::to_device, p.range, buffer, lane);
    if (s) s = by.wait(lane);
    return s;
  });
}

}  // namespace stillmap::checkpoint
