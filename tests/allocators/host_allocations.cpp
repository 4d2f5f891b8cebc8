#include "tests/allocators/host_allocations.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::uint64_t counted = 0;

}  // namespace

std::uint64_t stillmap::testing::host_allocations() {
  return counted;
}

void *operator new(std::size_t bytes) {
  ++counted;
  if (void *const at = std::malloc(bytes)) return at;
  throw std::bad_alloc();
}
void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept {
  ++counted;
  return std::malloc(bytes);
}
void operator delete(void *at) noexcept {
  std::free(at);
}
void operator delete(void *at, std::size_t) noexcept {
  std::free(at);
}
