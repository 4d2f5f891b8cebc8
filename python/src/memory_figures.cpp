#include "python/src/memory_figures.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "stillmap/allocators/device_share.h"
#include "stillmap/allocators/torch/internal/tagged_heaps.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::python {
namespace {

// Never destroyed: a server may be asked while the process ends.
struct known_allocators {
  fork_watch born;
  mutex lock;
  std::vector<std::weak_ptr<caching_allocator>> all STILLMAP_GUARDED_BY(lock);
};

known_allocators &allocators_of_process() {
  static known_allocators *const made = new known_allocators;
  return *made;
}

std::vector<std::shared_ptr<caching_allocator>> allocators_on(int ordinal) {
  std::vector<std::shared_ptr<caching_allocator>> out;
  known_allocators &known = allocators_of_process();
  if (known.born.in_child()) return out;
  const lock_guard lock(known.lock);
  for (const auto &one : known.all) {
    if (auto heap = one.lock(); heap != nullptr && heap->device().ordinal() == ordinal) {
      out.push_back(std::move(heap));
    }
  }
  return out;
}

class figures {
 public:
  void add(const caching_allocator &heap) {
    const arena_stats total = heap.stats().total;
    sum_.allocated += total.live;
    sum_.cached += total.committed - total.live;
    sum_.limit = count_++ == 0 && heap.limit() != SIZE_MAX ? heap.limit() : 0;
  }
  void add(const torch_plugin::torch_heaps &heaps, int ordinal) {
    if (heaps.forked()) return;
    if (const caching_allocator *const heap = heaps.known(ordinal)) add(*heap);
  }
  control::memory_figures take() { return std::move(sum_); }

 private:
  control::memory_figures sum_;
  int count_ = 0;
};

}  // namespace

void count_allocator(const std::shared_ptr<caching_allocator> &heap) {
  known_allocators &known = allocators_of_process();
  if (known.born.in_child()) return;
  const lock_guard lock(known.lock);
  std::erase_if(known.all, [](const auto &one) { return one.expired(); });
  known.all.push_back(heap);
}

control::memory_figures memory_figures_of(int ordinal) {
  figures sum;
  // The last pointer to an allocator may be one of these, and its end may wait for the device: as close() does.
  for (const auto &heap : allocators_on(ordinal)) sum.add(*heap);
  if (const auto *const heaps = torch_plugin::known_heaps()) sum.add(*heaps, ordinal);
  for (const auto *const heaps : torch_plugin::heaps_of_tags()) sum.add(*heaps, ordinal);
  control::memory_figures out = sum.take();
  out.quota = known_share_name(ordinal);
  return out;
}

}  // namespace stillmap::python
