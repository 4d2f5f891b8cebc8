#include "stillmap/allocators/torch/internal/pool_refusal.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <new>
#include <thread>

#include "stillmap/vmm/base/mutex.h"

namespace stillmap::torch_plugin {
namespace {

// Only tried: in a forked child a thread of the parent may hold it for ever.
mutex refusal_lock;
std::atomic<bool> pool_refused{false};
std::array<char, 512> refusal_text STILLMAP_GUARDED_BY(refusal_lock){};
std::thread::id refused_thread STILLMAP_GUARDED_BY(refusal_lock);

}  // namespace

void note_refusal(const std::string &tag, int ordinal, const error &e) noexcept {
  if (!refusal_lock.try_lock()) return;
  const lock_guard lock(refusal_lock, std::adopt_lock);
  try {
    std::snprintf(refusal_text.data(), refusal_text.size(), "tag %s, device %d: %s", tag.c_str(),
                  ordinal, e.message().c_str());
  } catch (const std::bad_alloc &) {
    std::snprintf(refusal_text.data(), refusal_text.size(), "tag %s, device %d: %s", tag.c_str(),
                  ordinal, e.reason);
  }
  refused_thread = std::this_thread::get_id();
  pool_refused = true;
}

void note_served() noexcept {
  if (!pool_refused) return;
  if (!refusal_lock.try_lock()) return;
  const lock_guard lock(refusal_lock, std::adopt_lock);
  if (refused_thread == std::this_thread::get_id()) pool_refused = false;
}

std::string take_refusal() {
  if (!refusal_lock.try_lock()) return {};
  const lock_guard lock(refusal_lock, std::adopt_lock);
  if (!pool_refused.exchange(false)) return {};
  return refusal_text.data();
}

}  // namespace stillmap::torch_plugin
