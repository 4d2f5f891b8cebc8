#include "stillmap/c_api/internal/latest_error.h"

#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "stillmap/vmm/base/error_code.h"

namespace stillmap::c_api {
namespace {

thread_local constinit described_error latest{};

constexpr const char *advice[] = {
    "",
    "free device memory or raise the limit, then repeat the call",
    "destroy buffers or reserve fewer bytes, then repeat the call",
    "correct the call: the message names the value and the limit",
    "use another way: this driver, device or library cannot do it",
    "wait until the work or the other owner has finished, then repeat the call",
    "end the process: its context on the device is broken",
    "do not use the data",
    "nothing; or repeat the call",
    "free host memory, then repeat the call",
    "see system_code: it is an errno",
    "see driver_code: it is a CUresult",
};

bool names_another(const char *function, const error &e) {
  return std::strcmp(function, e.operation) != 0;
}

}  // namespace

void describe(const char *function, const error &e, described_error &into) noexcept {
  stillmap_error &v = into.values;
  v.struct_size = sizeof v;
  v.status = status_of(e);
  v.unit = static_cast<std::int32_t>(e.unit);
  v.driver_code = e.code.category() == cuda_category() ? e.code.value() : 0;
  const auto &category = e.code.category();
  const bool of_system = category == std::system_category() || category == std::generic_category();
  v.system_code = of_system ? e.code.value() : 0;
  v.value = e.value;
  v.limit = e.limit;
  v.function = function;
  v.operation = e.operation;
  v.reason = e.reason;
  std::snprintf(into.subject.data(), into.subject.size(), "%s", e.detail().subject.c_str());
  v.subject = into.subject.data();
  const char *const before = names_another(function, e) ? function : "";
  const char *const colon = *before != '\0' ? ": " : "";
  try {
    std::snprintf(into.message.data(), into.message.size(), "%s%s%s", before, colon,
                  e.message().c_str());
  } catch (const std::bad_alloc &) {
    std::snprintf(into.message.data(), into.message.size(), "%s%s%s: %s", before, colon,
                  e.operation, e.reason);
  }
  v.message = into.message.data();
  v.advice = advice[v.status];
}

described_error &latest_error() noexcept {
  return latest;
}

stillmap_status status_of(const error &e) noexcept {
  if (e.code == std::errc::not_enough_memory) return STILLMAP_OUT_OF_HOST_MEMORY;
  for (const errc c : {errc::out_of_memory, errc::address_space_exhausted, errc::invalid_argument,
                       errc::not_supported, errc::busy, errc::device_lost, errc::corrupt,
                       errc::operation_canceled}) {
    if (e.is(c)) return static_cast<stillmap_status>(c);
  }
  return e.code.category() == cuda_category() ? STILLMAP_FAILED : STILLMAP_SYSTEM_ERROR;
}

errc condition_of(int status) noexcept {
  return status >= STILLMAP_OUT_OF_MEMORY && status <= STILLMAP_CANCELED ? static_cast<errc>(status)
                                                                         : errc::busy;
}

stillmap_status remember(const char *function, const error &e) noexcept {
  describe(function, e, latest);
  return static_cast<stillmap_status>(latest.values.status);
}

}  // namespace stillmap::c_api
