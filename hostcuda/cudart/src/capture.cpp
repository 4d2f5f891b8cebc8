// Capture of streams into graphs.
#include "hostcuda/cudart/src/runtime.h"

using namespace cudart;

CUDART_STREAM_FORWARD(cudaStreamBeginCapture, stream,
                      (cudaStream_t stream, cudaStreamCaptureMode mode), cuStreamBeginCapture,
                      (stream, static_cast<CUstreamCaptureMode>(mode)))
CUDART_STREAM_FORWARD(cudaStreamEndCapture, stream, (cudaStream_t stream, cudaGraph_t *graph),
                      cuStreamEndCapture, (stream, graph))
CUDART_STREAM_FORWARD(cudaStreamIsCapturing, stream,
                      (cudaStream_t stream, cudaStreamCaptureStatus *status), cuStreamIsCapturing,
                      (stream, same<CUstreamCaptureStatus>(status)))

CUDART_ENTRY(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode), {
  CUDART_TRY(bind());
  return from_driver(
      CUDART_DRIVER(cuThreadExchangeStreamCaptureMode)(same<CUstreamCaptureMode>(mode)));
})

namespace cudart {
namespace {

cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus *status,
                         unsigned long long *id, cudaGraph_t *graph,
                         const cudaGraphNode_t **dependencies, size_t *count) {
  return driver_call<CUstream, cudaStreamCaptureStatus *, unsigned long long *, CUgraph *,
                     const CUgraphNode **, size_t *>{"cuStreamGetCaptureInfo_v2"}(
      stream, status, id, graph, dependencies, count);
}

}  // namespace
}  // namespace cudart

#if CUDART_MAJOR < 13
// The signature of CUDA 10, which programs still call by dlsym.
CUDART_STREAM_ENTRY(cudaStreamGetCaptureInfo, stream,
                    (cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id),
                    { return capture_info(stream, status, id, nullptr, nullptr, nullptr); })
CUDART_STREAM_ENTRY(cudaStreamGetCaptureInfo_v2, stream,
                    (cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count),
                    { return capture_info(stream, status, id, graph, dependencies, count); })
CUDART_STREAM_ENTRY(cudaStreamUpdateCaptureDependencies, stream,
                    (cudaStream_t stream, cudaGraphNode_t *dependencies, size_t count,
                     unsigned flags),
                    {
                      return driver_call<CUstream, CUgraphNode *, size_t, unsigned>{
                          "cuStreamUpdateCaptureDependencies"}(stream, dependencies, count, flags);
                    })
#endif

#if CUDART_VERSION >= 12030
#if CUDART_MAJOR < 13
#define CUDART_CAPTURE_NAME(name, suffix) name##suffix
#else
#define CUDART_CAPTURE_NAME(name, suffix) name
#endif
// One more level, so that the name is expanded before it gets its suffix.
#define CUDART_CAPTURE_ENTRY(name, ...) CUDART_STREAM_ENTRY(name, __VA_ARGS__)

CUDART_CAPTURE_ENTRY(
    CUDART_CAPTURE_NAME(cudaStreamGetCaptureInfo, _v3), stream,
    (cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
     cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
     size_t *count),
    {
      // Drivers before 12.3 have no edge data.
      if (edges == nullptr) return capture_info(stream, status, id, graph, dependencies, count);
      return driver_call<CUstream, cudaStreamCaptureStatus *, unsigned long long *, CUgraph *,
                         const CUgraphNode **, const cudaGraphEdgeData **, size_t *>{
          "cuStreamGetCaptureInfo_v3"}(stream, status, id, graph, dependencies, edges, count);
    })
CUDART_CAPTURE_ENTRY(
    CUDART_CAPTURE_NAME(cudaStreamUpdateCaptureDependencies, _v2), stream,
    (cudaStream_t stream, cudaGraphNode_t *dependencies, const cudaGraphEdgeData *edges,
     size_t count, unsigned flags),
    {
      return driver_call<CUstream, CUgraphNode *, const cudaGraphEdgeData *, size_t, unsigned>{
          "cuStreamUpdateCaptureDependencies_v2"}(stream, dependencies, edges, count, flags);
    })
CUDART_STREAM_ENTRY(cudaStreamBeginCaptureToGraph, stream,
                    (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                     const cudaGraphEdgeData *edges, size_t count, cudaStreamCaptureMode mode),
                    {
                      return driver_call<CUstream, CUgraph, const CUgraphNode *,
                                         const cudaGraphEdgeData *, size_t, cudaStreamCaptureMode>{
                          "cuStreamBeginCaptureToGraph"}(stream, graph, dependencies, edges, count,
                                                         mode);
                    })
#endif
