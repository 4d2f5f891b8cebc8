// Makes the driver calls: refuses functions that the driver lacks, counts, calls, and translates the
// result.
#pragma once

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/driver.h"
#include "stillmap/vmm/driver/table.h"

namespace stillmap {

// The member of driver_table with the function of a call.
template <driver_call>
inline constexpr int table_member = 0;
#define STILLMAP_MEMBER(call, symbol, since, parameters) \
  template <>                                            \
  inline constexpr auto table_member<driver_call::call> = &driver_table::call;
STILLMAP_DRIVER_SYMBOLS(STILLMAP_MEMBER)
#undef STILLMAP_MEMBER

inline CUdeviceptr raw(device_address at) {
  return CUdeviceptr{at.value()};
}

// The implementation's only access to a driver.
struct driver_access {
  // What a call asks for; becomes part of its error.
  struct request {
    std::uint64_t value = 0;
    bool takes_memory = false;  // out of memory: the error states how much was free
    error_unit unit = error_unit::bytes;
  };

  template <driver_call call, class... Arguments>
  static status make(const driver &d, request r, Arguments... arguments) {
    const auto function = d.table().*table_member<call>;
    if (function == nullptr) return absent(call, r);
    bump(d.calls_[static_cast<std::size_t>(call)], 1);
    const CUresult done = function(arguments...);
    if (done == CUDA_SUCCESS) return {};
    return translate(d, call, r, done);
  }

  // For calls that write their result, a Raw, through their first parameter.
  template <driver_call call, class Raw, class Value = Raw, class... Arguments>
  static result<Value> get(const driver &d, request r, Arguments... arguments) {
    Raw value{};
    STILLMAP_RETURN_IF_ERROR(make<call>(d, r, &value, arguments...));
    return static_cast<Value>(value);
  }

  // For calls that return CUDA_ERROR_NOT_READY for "no".
  template <driver_call call, class Handle>
  static result<bool> ask(const driver &d, Handle handle) {
    const auto function = d.table().*table_member<call>;
    if (function == nullptr) return absent(call, {});
    bump(d.calls_[static_cast<std::size_t>(call)], 1);
    const CUresult r = function(handle);
    if (r == CUDA_ERROR_NOT_READY) return false;
    if (r == CUDA_SUCCESS) return true;
    return translate(d, call, {}, r);
  }

  static void moved_to_device(const driver &d, std::size_t n) { bump(d.to_device_, n); }
  static void moved_to_host(const driver &d, std::size_t n) { bump(d.to_host_, n); }
  static void moved_on_device(const driver &d, std::size_t n) { bump(d.on_device_, n); }

  // A driver over an opened library. Never destroyed.
  static result<driver *> build(void *library, const std::string &path);

 private:
  static void bump(std::atomic<std::uint64_t> &counter, std::uint64_t n) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
  static tl::unexpected<error> absent(driver_call call, const request &asked);
  // Of a call that failed.
  static tl::unexpected<error> translate(const driver &d, driver_call call, const request &asked,
                                         CUresult r);
};

}  // namespace stillmap
