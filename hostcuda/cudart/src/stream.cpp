// Streams, and host functions on them.
#include "hostcuda/cudart/src/runtime.h"

using namespace cudart;

CUDART_FORWARD(cudaStreamCreate, (cudaStream_t * out), cuStreamCreate, (out, CU_STREAM_DEFAULT))
CUDART_FORWARD(cudaStreamCreateWithFlags, (cudaStream_t * out, unsigned flags), cuStreamCreate,
               (out, flags))
CUDART_FORWARD(cudaStreamCreateWithPriority, (cudaStream_t * out, unsigned flags, int priority),
               cuStreamCreateWithPriority, (out, flags, priority))
CUDART_FORWARD(cudaStreamDestroy, (cudaStream_t stream), cuStreamDestroy, (stream))

CUDART_STREAM_FORWARD(cudaStreamQuery, stream, (cudaStream_t stream), cuStreamQuery, (stream))
CUDART_STREAM_FORWARD(cudaStreamSynchronize, stream, (cudaStream_t stream), cuStreamSynchronize,
                      (stream))
CUDART_STREAM_FORWARD(cudaStreamWaitEvent, stream,
                      (cudaStream_t stream, cudaEvent_t event, unsigned flags), cuStreamWaitEvent,
                      (stream, event, flags))
CUDART_STREAM_FORWARD(cudaStreamGetPriority, stream, (cudaStream_t stream, int *priority),
                      cuStreamGetPriority, (stream, priority))
CUDART_STREAM_FORWARD(cudaStreamGetFlags, stream, (cudaStream_t stream, unsigned *flags),
                      cuStreamGetFlags, (stream, flags))
CUDART_STREAM_FORWARD(cudaStreamGetId, stream, (cudaStream_t stream, unsigned long long *id),
                      cuStreamGetId, (stream, id))

#if CUDART_VERSION >= 12080
CUDART_STREAM_ENTRY(cudaStreamGetDevice, stream, (cudaStream_t stream, int *device), {
  if (device == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  return from_driver(CUDART_DRIVER(cuStreamGetDevice)(stream, device));
})
#endif

// The driver's callback has the same parameters; the error codes are equal.
CUDART_STREAM_FORWARD(cudaStreamAddCallback, stream,
                      (cudaStream_t stream, cudaStreamCallback_t callback, void *user,
                       unsigned flags),
                      cuStreamAddCallback,
                      (stream, reinterpret_cast<CUstreamCallback>(callback), user, flags))
CUDART_STREAM_FORWARD(cudaLaunchHostFunc, stream,
                      (cudaStream_t stream, cudaHostFn_t function, void *user), cuLaunchHostFunc,
                      (stream, function, user))

CUDART_STREAM_FORWARD(cudaStreamGetAttribute, stream,
                      (cudaStream_t stream, cudaStreamAttrID attribute, cudaStreamAttrValue *value),
                      cuStreamGetAttribute,
                      (stream, static_cast<CUstreamAttrID>(attribute),
                       same<CUstreamAttrValue>(value)))
CUDART_STREAM_FORWARD(cudaStreamSetAttribute, stream,
                      (cudaStream_t stream, cudaStreamAttrID attribute,
                       const cudaStreamAttrValue *value),
                      cuStreamSetAttribute,
                      (stream, static_cast<CUstreamAttrID>(attribute),
                       same<const CUstreamAttrValue>(value)))
CUDART_STREAM_FORWARD(cudaStreamCopyAttributes, to, (cudaStream_t to, cudaStream_t from),
                      cuStreamCopyAttributes, (to, from))
