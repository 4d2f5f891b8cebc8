// cuStreamGetCtx_v2: the context of a stream, and its green context.
#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"

using namespace hostcuda;

#if CUDA_VERSION >= 12050
HOSTCUDA_STREAM_ENTRY(cuStreamGetCtx_v2, 12050, plain, 0, stream,
                      (CUstream stream, CUcontext *out, CUgreenCtx *green), (stream, out, green), {
                        if (out == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
                        current_entry of;
                        if (const CUresult r = context_of(stream, &of); r != CUDA_SUCCESS) return r;
                        // As documented. Its work would run on the primary context's stream.
                        if (of.green != nullptr && stream == CU_STREAM_PER_THREAD)
                          return CUDA_ERROR_INVALID_HANDLE;
                        *out = handle_of(of.ctx);
                        *green = reinterpret_cast<CUgreenCtx>(of.green);
                        return CUDA_SUCCESS;
                      })
#else
HOSTCUDA_NOT_PROVIDED(cuStreamGetCtx_v2, 12050)
HOSTCUDA_NOT_PROVIDED(cuStreamGetCtx_v2_ptsz, 12050)
#endif
