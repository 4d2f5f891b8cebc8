#include "preload/service/memory/served_memory.h"

#include <atomic>

#include "preload/service/memory/device_memory.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {

class served_memory::lease {
 public:
  lease(device_memory &device, word bytes) noexcept : device_(device), bytes_(bytes) {}
  ~lease() { device_.release_served(bytes_); }
  lease(const lease &) = delete;

 private:
  device_memory &device_;
  const word bytes_;
};

namespace {

struct table {
  stillmap::mutex mutex;  // a leaf: no lease ends while it is held
  served_memory::holders all STILLMAP_GUARDED_BY(mutex);
};

table &known() {
  static undying<table> t;
  return *t;
}

// So that a program whose memory Stillmap serves looks for none here.
constinit std::atomic<std::size_t> entries{0};

}  // namespace

bool served_memory::any() noexcept {
  return entries.load(std::memory_order_acquire) != 0;
}

void served_memory::leave_in_child() noexcept {
  entries.store(0, std::memory_order_relaxed);
}

result<served_memory::lease_ptr> served_memory::reserve(int ordinal, word bytes) noexcept {
  device_memory *const device = device_memory::of(ordinal);
  if (device == nullptr || bytes == 0) return lease_ptr();
  if (const status s = device->reserve_served(bytes); !s) {
    // In a forked child, for example: what the driver says is right.
    if (s.error().is(errc::out_of_memory) || s.error().is(errc::busy))
      return tl::unexpected<error>(s.error());
    return lease_ptr();
  }
  auto made = with_host_memory("stillmap_preload", [&]() -> result<lease_ptr> {
    return std::make_shared<lease>(*device, bytes);
  });
  if (!made) device->release_served(bytes);
  return made;
}

void served_memory::add(held_by kind, word key, holder h) noexcept {
  if (h.bytes == nullptr) return;
  table &t = known();
  const status added = with_host_memory("stillmap_preload", [&]() -> status {
    const lock_guard lock(t.mutex);
    t.all.emplace(std::pair(kind, key), h);
    entries.store(t.all.size(), std::memory_order_release);
    return {};
  });
  report_if_failed(added);
}

served_memory::lease_ptr served_memory::of_handle(word handle) noexcept {
  if (!any()) return nullptr;
  table &t = known();
  const lock_guard lock(t.mutex);
  const auto found = t.all.find({held_by::handle, handle});
  return found != t.all.end() ? found->second.bytes : nullptr;
}

served_memory::lease_ptr served_memory::mapped_at(word address) noexcept {
  if (!any()) return nullptr;
  table &t = known();
  const lock_guard lock(t.mutex);
  auto found = t.all.upper_bound({held_by::mapping, address});
  if (found == t.all.begin()) return nullptr;
  --found;
  const auto &[kind, begin] = found->first;
  const bool inside = kind == held_by::mapping && address - begin < found->second.range;
  return inside ? found->second.bytes : nullptr;
}

served_memory::holders served_memory::take_out(held_by kind, word key) noexcept {
  holders out;
  if (!any()) return out;
  table &t = known();
  const lock_guard lock(t.mutex);
  // One: of a handle that was retained there are several.
  if (const auto found = t.all.find({kind, key}); found != t.all.end())
    out.insert(t.all.extract(found));
  entries.store(t.all.size(), std::memory_order_release);
  return out;
}

served_memory::holders served_memory::take_out_mappings(word at, word range) noexcept {
  holders out;
  if (!any()) return out;
  table &t = known();
  const lock_guard lock(t.mutex);
  auto next = t.all.lower_bound({held_by::mapping, at});
  while (next != t.all.end() && next->first.first == held_by::mapping &&
         next->first.second - at < range) {
    out.insert(t.all.extract(next++));
  }
  entries.store(t.all.size(), std::memory_order_release);
  return out;
}

served_memory::holders served_memory::take_out_context(word context) noexcept {
  holders out;
  if (!any() || context == 0) return out;
  table &t = known();
  const lock_guard lock(t.mutex);
  for (auto next = t.all.begin(); next != t.all.end();) {
    const auto here = next++;
    if (here->second.context == context) out.insert(t.all.extract(here));
  }
  entries.store(t.all.size(), std::memory_order_release);
  return out;
}

void served_memory::put_back(holders &&taken) noexcept {
  table &t = known();
  const lock_guard lock(t.mutex);
  t.all.merge(taken);
  entries.store(t.all.size(), std::memory_order_release);
}

}  // namespace stillmap::preload
