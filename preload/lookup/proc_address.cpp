// cuGetProcAddress, through which the CUDA runtime finds the driver's functions, whether it is linked statically or
// not, and cudaGetDriverEntryPoint with it.
#include <algorithm>
#include <atomic>

#include "preload/functions/serve.h"
#include "preload/lookup/loaded_objects.h"

namespace stillmap::preload {
namespace {

// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM. Source: cuda.h.
constexpr word per_thread_flag = 2;

// A driver answers for a later version than its own as for its own.
int version_of_driver() noexcept {
  static constinit std::atomic<int> known{0};
  int version = known.load(std::memory_order_relaxed);
  if (version == 0 &&
      pass_on<function::cuDriverGetVersion>(reinterpret_cast<word>(&version)) == code::success) {
    known.store(version, std::memory_order_relaxed);
  }
  return version;
}

// Puts the wrapper in the place of what the driver has found.
driver_code replace(driver_code result, word name, word to, number version,
                    bool per_thread) noexcept {
  void *&found = *reinterpret_cast<void **>(to);
  if (result != code::success || found == nullptr || is_ours(found)) return result;
  const auto *const text = reinterpret_cast<const char *>(name);
  auto f = find_by_name(text, std::min(static_cast<int>(version), version_of_driver()), per_thread);
  if (!f) f = find_symbol(text);
  if (!f || wraps_behind_us(lookup_caller, symbol_of(*f))) return result;
  // A driver of a later CUDA may have a later ABI under this name.
  if (static_cast<int>(version) > newest_version && find_behind_us(symbol_of(*f)) != found)
    return result;
  set_next(*f, found);
  found = wrapper_of(*f);
  return result;
}

}  // namespace

driver_code serve(numbered<function::cuGetProcAddress>, word name, word to, number version,
                  word flags) noexcept {
  const driver_code result = pass_on<function::cuGetProcAddress>(name, to, version, flags);
  return replace(result, name, to, version, (flags & per_thread_flag) != 0);
}
driver_code serve(numbered<function::cuGetProcAddress_v2>, word name, word to, number version,
                  word flags, word status) noexcept {
  const driver_code result =
      pass_on<function::cuGetProcAddress_v2>(name, to, version, flags, status);
  return replace(result, name, to, version, (flags & per_thread_flag) != 0);
}
driver_code serve(numbered<function::cuGetProcAddress_v2_ptsz>, word name, word to, number version,
                  word flags, word status) noexcept {
  constexpr word legacy_flag = 1;
  const driver_code result =
      pass_on<function::cuGetProcAddress_v2_ptsz>(name, to, version, flags, status);
  return replace(result, name, to, version, (flags & legacy_flag) == 0);
}

}  // namespace stillmap::preload
