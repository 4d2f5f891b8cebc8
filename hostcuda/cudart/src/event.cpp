// Events.
#include "hostcuda/cudart/src/runtime.h"

using namespace cudart;

CUDART_FORWARD(cudaEventCreate, (cudaEvent_t * out), cuEventCreate, (out, CU_EVENT_DEFAULT))
CUDART_FORWARD(cudaEventCreateWithFlags, (cudaEvent_t * out, unsigned flags), cuEventCreate,
               (out, flags))
CUDART_FORWARD(cudaEventDestroy, (cudaEvent_t event), cuEventDestroy, (event))
CUDART_FORWARD(cudaEventQuery, (cudaEvent_t event), cuEventQuery, (event))
CUDART_FORWARD(cudaEventSynchronize, (cudaEvent_t event), cuEventSynchronize, (event))
CUDART_FORWARD(cudaEventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end),
               cuEventElapsedTime, (ms, start, end))
#if CUDART_VERSION >= 12080 && CUDART_MAJOR < 13
CUDART_FORWARD(cudaEventElapsedTime_v2, (float *ms, cudaEvent_t start, cudaEvent_t end),
               cuEventElapsedTime, (ms, start, end))
#endif
CUDART_STREAM_FORWARD(cudaEventRecord, stream, (cudaEvent_t event, cudaStream_t stream),
                      cuEventRecord, (event, stream))
CUDART_STREAM_FORWARD(cudaEventRecordWithFlags, stream,
                      (cudaEvent_t event, cudaStream_t stream, unsigned flags),
                      cuEventRecordWithFlags, (event, stream, flags))
