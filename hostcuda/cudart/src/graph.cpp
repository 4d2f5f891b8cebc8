// Graphs: instantiation, launch, update, and what they own.
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) &&
              offsetof(cudaGraphInstantiateParams, result_out) ==
                  offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out));
static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));

cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  CUDART_TRY(bind());
  return from_driver(CUDART_DRIVER(cuGraphInstantiateWithFlags)(out, graph, flags));
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_FORWARD(cudaGraphCreate, (cudaGraph_t * out, unsigned flags), cuGraphCreate, (out, flags))
CUDART_FORWARD(cudaGraphDestroy, (cudaGraph_t graph), cuGraphDestroy, (graph))
CUDART_FORWARD(cudaGraphClone, (cudaGraph_t * out, cudaGraph_t graph), cuGraphClone, (out, graph))

CUDART_ENTRY(cudaGraphInstantiate,
             (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
             { return instantiate(out, graph, flags); })
CUDART_ENTRY(cudaGraphInstantiateWithFlags,
             (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
             { return instantiate(out, graph, flags); })
CUDART_ENTRY(cudaGraphInstantiateWithParams,
             (cudaGraphExec_t * out, cudaGraph_t graph, cudaGraphInstantiateParams *params), {
               CUDART_TRY(bind());
               return from_driver(CUDART_DRIVER(cuGraphInstantiateWithParams)(
                   out, graph, same<CUDA_GRAPH_INSTANTIATE_PARAMS>(params)));
             })
CUDART_ENTRY(cudaGraphInstantiateWithParams_ptsz,
             (cudaGraphExec_t * out, cudaGraph_t graph, cudaGraphInstantiateParams *params), {
               CUDART_TRY(bind());
               return driver_call<CUgraphExec *, CUgraph, cudaGraphInstantiateParams *>{
                   "cuGraphInstantiateWithParams_ptsz"}(out, graph, params);
             })

CUDART_STREAM_FORWARD(cudaGraphLaunch, stream, (cudaGraphExec_t exec, cudaStream_t stream),
                      cuGraphLaunch, (exec, stream))
CUDART_STREAM_FORWARD(cudaGraphUpload, stream, (cudaGraphExec_t exec, cudaStream_t stream),
                      cuGraphUpload, (exec, stream))
CUDART_FORWARD(cudaGraphExecDestroy, (cudaGraphExec_t exec), cuGraphExecDestroy, (exec))
CUDART_ENTRY(cudaGraphExecUpdate,
             (cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info), {
               return driver_call<CUgraphExec, CUgraph, cudaGraphExecUpdateResultInfo *>{
                   "cuGraphExecUpdate_v2"}(exec, graph, info);
             })
#if CUDART_VERSION >= 12000
CUDART_FORWARD(cudaGraphExecGetFlags, (cudaGraphExec_t exec, unsigned long long *flags),
               cuGraphExecGetFlags, (exec, reinterpret_cast<cuuint64_t *>(flags)))
#endif
CUDART_FORWARD(cudaGraphDebugDotPrint, (cudaGraph_t graph, const char *path, unsigned flags),
               cuGraphDebugDotPrint, (graph, path, flags))

// ---- Memory that graphs allocate

CUDART_DEVICE_FORWARD(cudaDeviceGraphMemTrim, (int device), cuDeviceGraphMemTrim, (device))
CUDART_DEVICE_FORWARD(cudaDeviceGetGraphMemAttribute,
                      (int device, cudaGraphMemAttributeType what, void *value),
                      cuDeviceGetGraphMemAttribute,
                      (device, static_cast<CUgraphMem_attribute>(what), value))
CUDART_DEVICE_FORWARD(cudaDeviceSetGraphMemAttribute,
                      (int device, cudaGraphMemAttributeType what, void *value),
                      cuDeviceSetGraphMemAttribute,
                      (device, static_cast<CUgraphMem_attribute>(what), value))

// ---- User objects

CUDART_FORWARD(cudaUserObjectCreate,
               (cudaUserObject_t * out, void *object, cudaHostFn_t destroy, unsigned references,
                unsigned flags),
               cuUserObjectCreate, (out, object, destroy, references, flags))
CUDART_FORWARD(cudaUserObjectRetain, (cudaUserObject_t object, unsigned count), cuUserObjectRetain,
               (object, count))
CUDART_FORWARD(cudaUserObjectRelease, (cudaUserObject_t object, unsigned count),
               cuUserObjectRelease, (object, count))
CUDART_FORWARD(cudaGraphRetainUserObject,
               (cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags),
               cuGraphRetainUserObject, (graph, object, count, flags))
CUDART_FORWARD(cudaGraphReleaseUserObject,
               (cudaGraph_t graph, cudaUserObject_t object, unsigned count),
               cuGraphReleaseUserObject, (graph, object, count))
