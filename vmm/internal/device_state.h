// What the handles of one device share. Internal: users hold a `device`.
//
// Two layers, because fences outlive buffers: a device_core is what an event needs to stay valid
// (the context and the event pool) and holds nothing that could hold a fence. A device::state adds
// the ledger and the default page pool, whose pages do hold fences; they keep the core, not the
// state, so nothing keeps itself alive. docs/design.md#devices-and-fallbacks
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap {

// Events without timing that nobody waits for any more, kept because recording is far cheaper than
// creating. Needs the device's context current.
// Threads: safe. Lock order: a leaf; never held across a driver call.
class event_pool {
 public:
  result<event_handle> take(const stillmap::driver &drv);
  // Its work need not have passed: recording an event again forgets the earlier recording.
  void give_back(event_handle e) noexcept;
  void destroy_all(const stillmap::driver &drv) noexcept;

 private:
  std::mutex mutex_;
  std::vector<event_handle> free_;
  std::size_t created_ = 0;
};

struct device_core {
  device_core(const stillmap::driver &d, int device, primary_context held)
      : drv(&d), ordinal(device), context(std::move(held)) {}
  ~device_core();
  device_core(const device_core &) = delete;
  device_core &operator=(const device_core &) = delete;

  const stillmap::driver *drv;
  int ordinal;
  primary_context context;
  event_pool events;
};

// The pools of one device, so that one short of memory finds what lies free in the others.
// Threads: safe. Lock order: a leaf.
class pool_list {
 public:
  void add(const std::shared_ptr<page_pool> &p);
  std::vector<std::shared_ptr<page_pool>> others(const page_pool &asking);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<page_pool>> pools_;
};

struct device::state {
  explicit state(std::shared_ptr<device_core> c)
      : core(std::move(c)), drv(core->drv), ordinal(core->ordinal) {}
  ~state();
  state(const state &) = delete;
  state &operator=(const state &) = delete;

  context_handle context() const { return core->context.get(); }

  std::shared_ptr<device_core> core;
  const stillmap::driver *drv;
  int ordinal;
  std::string name;
  std::array<unsigned char, 16> uuid{};
  physical_size total;
  stillmap::capabilities caps;
  std::weak_ptr<state> self;  // empty once the state is being destroyed

  // In this order, so that pages go back before the ledger that counts them goes.
  pool_list pools;
  std::unique_ptr<address_space> space;
  std::unique_ptr<page_pool> pool;
};

// Tries every feature. Needs the device's context current, and leaves nothing behind.
// Errors: device_lost; out_of_memory when not even one page is free, which says nothing about what
//         the device can do. Whatever else fails is absent.
result<capabilities> probe(const stillmap::driver &drv, int ordinal);

}  // namespace stillmap
