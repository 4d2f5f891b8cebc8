// cuStreamGetCtx_v2: the context of a stream, which is no green context.
#include "hostcuda/src/context.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/engine.h"

using namespace hostcuda;

#if CUDA_VERSION >= 12050
HOSTCUDA_STREAM_ENTRY(cuStreamGetCtx_v2, 12050, plain, 0, stream,
                      (CUstream stream, CUcontext *out, CUgreenCtx *green), (stream, out, green), {
                        if (out == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
                        stream_call call(stream);
                        if (!call.s) return call.error();
                        *out = handle_of(call.s->ctx);
                        *green = nullptr;
                        return CUDA_SUCCESS;
                      })
#else
HOSTCUDA_NOT_PROVIDED(cuStreamGetCtx_v2, 12050)
HOSTCUDA_NOT_PROVIDED(cuStreamGetCtx_v2_ptsz, 12050)
#endif
