#include "tests/support/host_memory.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string_view>

namespace {

struct plan {
  std::uint64_t counted = 0, bytes = 0;
  std::uint64_t fail_at = UINT64_MAX;  // the count at which an allocation fails
  bool all_after = false;
  bool failed = false;
  std::uint64_t begun_at = 0, failed_at = 0;
  int allowed = 0;
};
thread_local plan now;

// Whether the address lies in the driver's library.
bool in_driver(void *address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
         std::string_view(info.dli_fname).find("libcuda.so") != std::string_view::npos;
}

// The driver's own allocations must succeed: no exception may cross its C functions.
bool called_by_driver() {
  std::array<void *, 64> frames;
  const int n = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < n; ++i) {
    if (in_driver(frames[static_cast<std::size_t>(i)])) return true;
  }
  return false;
}

bool refused() {
  if (now.allowed != 0) return false;
  const std::uint64_t i = now.counted++;
  if (i < now.fail_at || (i > now.fail_at && !now.all_after && now.failed)) return false;
  // One that the driver makes is not counted: the next one fails.
  if (called_by_driver()) return false;
  if (!now.failed) now.failed_at = i;
  now.failed = true;
  return true;
}

void *allocate(std::size_t bytes, std::size_t alignment) {
  if (refused()) return nullptr;
  if (now.allowed == 0) now.bytes += bytes;
  if (bytes == 0) bytes = 1;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void *or_throw(void *at) {
  if (at != nullptr) return at;
  throw std::bad_alloc();
}

}  // namespace

namespace stillmap::testing {

std::uint64_t host_allocations() {
  return now.counted;
}
std::uint64_t host_allocated_bytes() {
  return now.bytes;
}

fail_host_allocation::fail_host_allocation(std::uint64_t nth, bool all_after) {
  now.begun_at = now.counted;
  now.fail_at = now.counted + nth;
  now.all_after = all_after;
  now.failed = false;
}
fail_host_allocation::~fail_host_allocation() {
  stop();
}
bool fail_host_allocation::happened() const {
  return now.failed;
}
std::uint64_t fail_host_allocation::failed_at() const {
  return now.failed_at - now.begun_at;
}
void fail_host_allocation::stop() {
  now.fail_at = UINT64_MAX;
  now.all_after = false;
}

allow_host_allocations::allow_host_allocations() {
  ++now.allowed;
}
allow_host_allocations::~allow_host_allocations() {
  --now.allowed;
}

}  // namespace stillmap::testing

// The forms that are not replaced here call these. Not inlined: the compiler would warn of malloc and
// free in their places.
[[gnu::noinline]] void *operator new(std::size_t bytes) {
  return or_throw(allocate(bytes, 0));
}
[[gnu::noinline]] void *operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, static_cast<std::size_t>(alignment)));
}
[[gnu::noinline]] void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept {
  return allocate(bytes, 0);
}
[[gnu::noinline]] void *operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t &) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void *at) noexcept {
  std::free(at);
}
[[gnu::noinline]] void operator delete(void *at, std::size_t) noexcept {
  std::free(at);
}
[[gnu::noinline]] void operator delete(void *at, std::align_val_t) noexcept {
  std::free(at);
}
[[gnu::noinline]] void operator delete(void *at, std::size_t, std::align_val_t) noexcept {
  std::free(at);
}
