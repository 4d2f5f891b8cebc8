#include "stillmap/allocators/torch/internal/pool_refusal.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <new>
#include <thread>

namespace stillmap::torch_plugin {
namespace {

// Only tried: in a forked child a thread of the parent may hold it for ever.
std::mutex refusal_lock;
std::atomic<bool> pool_refused{false};
std::array<char, 512> refusal_text{};
std::thread::id refused_thread;

}  // namespace

void note_refusal(const std::string &tag, int ordinal, const error &e) noexcept {
  const std::unique_lock lock(refusal_lock, std::try_to_lock);
  if (!lock) return;
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
  const std::unique_lock lock(refusal_lock, std::try_to_lock);
  if (lock && refused_thread == std::this_thread::get_id()) pool_refused = false;
}

std::string take_refusal() {
  const std::unique_lock lock(refusal_lock, std::try_to_lock);
  if (!lock || !pool_refused.exchange(false)) return {};
  return refusal_text.data();
}

}  // namespace stillmap::torch_plugin
