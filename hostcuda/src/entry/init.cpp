// cuInit, cuDriverGetVersion and cuGetProcAddress.
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/entry/entry_rules.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/shared_machine.h"

using namespace hostcuda;

HOSTCUDA_ENTRY(cuInit, 2000, before_init, 0, (unsigned flags), {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  prepare_first_machine();
  if (const CUresult r = join_machine(); r != CUDA_SUCCESS) return r;
  mark_initialised();
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuDriverGetVersion, 2020, before_init, 0, (int *version), {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = current_settings().machine.driver_version;
  return CUDA_SUCCESS;
})

namespace {

constexpr cuuint64_t kLegacy = 1;
constexpr cuuint64_t kPerThread = 2;

CUresult look_up(const char *symbol, void **out, int version, cuuint64_t flags, int *status) {
  if (symbol == nullptr || *symbol == '\0' || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~(kLegacy | kPerThread)) != 0 || flags == (kLegacy | kPerThread))
    return CUDA_ERROR_INVALID_VALUE;
  if (version > current_settings().machine.driver_version) return CUDA_ERROR_INVALID_VALUE;
  *out = find_entry(symbol, version, flags == kPerThread, status);
  return CUDA_SUCCESS;
}

}  // namespace

HOSTCUDA_ENTRY(cuGetProcAddress, 11030, before_init | never_fails | ignores_sticky, 0,
               (const char *symbol, void **out, int version, cuuint64_t flags), {
                 int status = 0;
                 if (CUresult r = look_up(symbol, out, version, flags, &status); r != CUDA_SUCCESS)
                   return r;
                 return status == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
               })

static CUresult get_proc_address(const char *symbol, void **out, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status) {
  int found = 0;
  if (CUresult r = look_up(symbol, out, version, flags, &found); r != CUDA_SUCCESS) return r;
  if (status != nullptr) *status = static_cast<CUdriverProcAddressQueryResult>(found);
  return CUDA_SUCCESS;
}

HOSTCUDA_ENTRY(cuGetProcAddress_v2, 12000, before_init | never_fails | ignores_sticky, 0,
               (const char *symbol, void **out, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult *status),
               { return get_proc_address(symbol, out, version, flags, status); })
HOSTCUDA_ENTRY(cuGetProcAddress_v2_ptsz, 12000, before_init | never_fails | ignores_sticky, 0,
               (const char *symbol, void **out, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult *status),
               {
                 return get_proc_address(symbol, out, version, flags == 0 ? kPerThread : flags,
                                         status);
               })
