// The state that the handles of one device share. Users hold a `device`.
//
// Fences outlive buffers, hence two layers. A device_core is what an event needs to stay valid (the
// context and the event pool), and holds nothing that could hold a fence. A device_state adds the
// ledger and the default page pool. Their pages hold fences, which keep the core alive but not the
// state, so that no reference cycle exists. docs/driver.md#devices-and-fallbacks
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/capabilities.h"
#include "stillmap/vmm/internal/device_core.h"

namespace stillmap {

class address_space;
class page_pool;

// The pools of one device. A pool that is short of memory releases free pages of the others.
// Threads: safe. Lock order: a leaf.
class pool_list {
 public:
  void add(const std::shared_ptr<page_pool> &p);
  // The first pool from position `i` on, which is set behind it; nullptr where there is none. A pool
  // may be missed while others are added. Takes no host memory.
  std::shared_ptr<page_pool> next(std::size_t &i);

 private:
  mutex mutex_;
  std::vector<std::weak_ptr<page_pool>> pools_ STILLMAP_GUARDED_BY(mutex_);
};

struct device_state {
  explicit device_state(std::shared_ptr<device_core> c);
  ~device_state();  // both are in open_device.cpp, which knows all parts
  device_state(const device_state &) = delete;
  device_state &operator=(const device_state &) = delete;

  context_handle context() const { return core->context.get(); }

  std::shared_ptr<device_core> core;
  const stillmap::driver *drv;
  int ordinal;
  std::string name;
  std::array<unsigned char, 16> uuid{};
  physical_size total;
  stillmap::capabilities caps;
  std::weak_ptr<device_state> self;  // empty once the state is being destroyed

  // In this order: the pool is destroyed before the ledger that counts its pages.
  pool_list pools;
  std::unique_ptr<address_space> space;
  std::unique_ptr<page_pool> pool;
};

}  // namespace stillmap
