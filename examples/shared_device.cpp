// Two tasks share one device: the second gets memory that the first only keeps in its cache, and waits for it
// before a step. Both are in this process here; each may be in one of its own, of any language.
#include <random>
#include <string>

#include "examples/example.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;
using namespace stillmap::literals;
using example::must;

namespace {

void share(const device &gpu, const std::string &name) {
  // [two_tasks]
  const auto first = must(shared_quota::open(name, {.limit = 96_MiB, .device = gpu}));
  must(first->start_thread());  // answers the others while the program computes
  const auto cache = must(caching_allocator::create(gpu, {.quota = first}));

  const auto second = must(shared_quota::open(name, {.terms = {.minimum = 16_MiB, .priority = 1}}));
  const auto heap = must(caching_allocator::create(gpu, {.quota = second}));
  // [/two_tasks]
  must(cache->free(must(cache->allocate(80_MiB))));
  example::check(cache->stats().total.committed == 80_MiB, "the first task keeps 80 MiB cached");
  void *const block = must(heap->allocate(64_MiB));
  example::check(first->stats()->reserved <= 96_MiB, "both together stay within the limit");
  example::check(cache->stats().total.committed <= 32_MiB, "the first gave back what was missing");
  must(heap->free(block));

  // [a_step]
  must(heap->begin_step(72_MiB));  // waits until others have given back what is missing
  void *const a = must(heap->allocate(40_MiB)), *const b = must(heap->allocate(32_MiB));
  // ... queue work ...
  must(heap->free(a));
  must(heap->free(b));
  heap->end_step();  // from here on others may have it
  // [/a_step]
  example::check(second->stats()->waits.busy == 0, "no request had to be refused");
}

// Needs a device that can map physical pages.
void grow_a_buffer(const device &gpu, const std::string &name) {
  const auto first = must(shared_quota::open(name, {.limit = 96_MiB, .device = gpu}));
  const auto second = must(shared_quota::open(name, {.device = gpu}));
  must(first->start_thread());
  const auto cache = must(caching_allocator::create(gpu, {.quota = first}));
  must(cache->free(must(cache->allocate(80_MiB))));
  // [a_buffer]
  const auto pool = must(page_pool::create(gpu, {.keep_free = 0, .quota = second}));
  auto states = must(growable_buffer::create(gpu, {.pools = {pool}}));
  if (!states.resize(72_MiB)) {       // at once, of what is free
    must(second->make_room(72_MiB));  // asks the others, and waits
    must(states.resize(72_MiB));      // its pages come out of the room
    second->end_room();               // what is left of it goes back
  }
  // [/a_buffer]
  example::check(states.size() == 72_MiB, "the buffer has grown");
  example::check(second->stats()->waits.granted == 1, "by memory that the first kept cached");
}

}  // namespace

int main() {
  const device gpu = must(device::open());
  // Programs in several containers may have the same process id, and share /dev/shm.
  const std::string name = "stillmap-example-" + std::to_string(std::random_device()());
  share(gpu, name);
  if (gpu.capabilities().vmm) grow_a_buffer(gpu, name);
  must(shared_quota::remove(name));
}
