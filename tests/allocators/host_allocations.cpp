#include "tests/allocators/host_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> counted{0};

}  // namespace

std::uint64_t stillmap::testing::host_allocations() {
  return counted.load(std::memory_order_relaxed);
}

void *operator new(std::size_t bytes) {
  counted.fetch_add(1, std::memory_order_relaxed);
  if (void *const at = std::malloc(bytes)) return at;
  throw std::bad_alloc();
}
void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept {
  counted.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void *at) noexcept {
  std::free(at);
}
void operator delete(void *at, std::size_t) noexcept {
  std::free(at);
}
