// libcublasLt: matrix products with descriptors. A search finds one algorithm, without workspace.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 15, stand_in::not_initialized = 1;  // cublasStatus_t

namespace {
struct descriptor {};
// cublasLtMatmulHeuristicResult_t
struct heuristic_result {
  std::uint64_t algorithm[8];
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(heuristic_result) == 96);
}  // namespace

STAND_IN std::size_t cublasLtGetVersion() {
  return 130000;
}
STAND_IN int cublasLtCreate(void **out) {
  return stand_in::create<descriptor>(out);
}
STAND_IN int cublasLtDestroy(void *h) {
  return stand_in::destroy<descriptor>(h);
}
STAND_IN int cublasLtMatmulDescCreate(void **out) {
  return stand_in::create<descriptor>(out);
}
STAND_IN int cublasLtMatmulDescDestroy(void *d) {
  return stand_in::destroy<descriptor>(d);
}
STAND_IN int cublasLtMatmulPreferenceCreate(void **out) {
  return stand_in::create<descriptor>(out);
}
STAND_IN int cublasLtMatmulPreferenceDestroy(void *d) {
  return stand_in::destroy<descriptor>(d);
}
STAND_IN int cublasLtMatrixLayoutCreate(void **out) {
  return stand_in::create<descriptor>(out);
}
STAND_IN int cublasLtMatrixLayoutDestroy(void *d) {
  return stand_in::destroy<descriptor>(d);
}
STAND_IN int cublasLtMatrixTransformDescCreate(void **out) {
  return stand_in::create<descriptor>(out);
}
STAND_IN int cublasLtMatrixTransformDescDestroy(void *d) {
  return stand_in::destroy<descriptor>(d);
}
STAND_IN int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *,
                                            int asked, heuristic_result *results, int *found) {
  if (asked < 1) return 7;  // CUBLAS_STATUS_INVALID_VALUE
  results[0] = {};
  *found = 1;
  return 0;
}
STAND_IN int cublasLtMatmulAlgoCheck(void *, void *, void *, void *, void *, void *, const void *,
                                     heuristic_result *result) {
  *result = {};
  return 0;
}
STAND_IN_REFUSES(cublasLtMatmulAlgoConfigGetAttribute)

#include "hostcuda/mathlibs/src/cublasLt_names.h"
