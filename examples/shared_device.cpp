// Two tasks share one device: the second gets memory that the first only keeps in its cache, and waits for it
// before a step. Both are in this process here; each may be in one of its own, of any language.
#include <random>
#include <string>

#include "examples/example.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/shared_quota.h"

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

}  // namespace

int main() {
  const device gpu = must(device::open());
  // Programs in several containers may have the same process id, and share /dev/shm.
  const std::string name = "stillmap-example-" + std::to_string(std::random_device()());
  share(gpu, name);
  must(shared_quota::remove(name));
}
