// The nodes of a graph, and the edges between them.
#include "hostcuda/cudart/src/runtime.h"

using namespace cudart;

CUDART_FORWARD(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count),
               cuGraphGetNodes, (graph, nodes, count))
CUDART_FORWARD(cudaGraphGetRootNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count),
               cuGraphGetRootNodes, (graph, nodes, count))
CUDART_FORWARD(cudaGraphNodeGetType, (cudaGraphNode_t node, cudaGraphNodeType *type),
               cuGraphNodeGetType, (node, same<CUgraphNodeType>(type)))
CUDART_FORWARD(cudaGraphDestroyNode, (cudaGraphNode_t node), cuGraphDestroyNode, (node))
CUDART_FORWARD(cudaGraphNodeFindInClone,
               (cudaGraphNode_t * out, cudaGraphNode_t node, cudaGraph_t clone),
               cuGraphNodeFindInClone, (out, node, clone))
CUDART_FORWARD(cudaGraphNodeSetEnabled,
               (cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled),
               cuGraphNodeSetEnabled, (exec, node, enabled))
CUDART_FORWARD(cudaGraphNodeGetEnabled,
               (cudaGraphExec_t exec, cudaGraphNode_t node, unsigned *enabled),
               cuGraphNodeGetEnabled, (exec, node, enabled))
CUDART_FORWARD(cudaGraphAddEmptyNode,
               (cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                size_t count),
               cuGraphAddEmptyNode, (out, graph, dependencies, count))
CUDART_FORWARD(cudaGraphAddChildGraphNode,
               (cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                size_t count, cudaGraph_t child),
               cuGraphAddChildGraphNode, (out, graph, dependencies, count, child))
CUDART_FORWARD(cudaGraphAddEventRecordNode,
               (cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                size_t count, cudaEvent_t event),
               cuGraphAddEventRecordNode, (out, graph, dependencies, count, event))
CUDART_FORWARD(cudaGraphAddEventWaitNode,
               (cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                size_t count, cudaEvent_t event),
               cuGraphAddEventWaitNode, (out, graph, dependencies, count, event))

// A host node has the same parameters in both interfaces, in structures of different types.
CUDART_ENTRY(cudaGraphAddHostNode,
             (cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
              size_t count, const cudaHostNodeParams *params),
             {
               if (params == nullptr) return cudaErrorInvalidValue;
               CUDART_TRY(bind());
               CUDA_HOST_NODE_PARAMS driver{};
               driver.fn = params->fn;
               driver.userData = params->userData;
               return from_driver(
                   CUDART_DRIVER(cuGraphAddHostNode)(out, graph, dependencies, count, &driver));
             })

// ---- Edges. Since CUDA 13 the functions without a suffix have edge data.

#if CUDART_MAJOR < 13
#define CUDART_EDGE_NAME(name) name##_v2
CUDART_ENTRY(cudaGraphGetEdges,
             (cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count), {
               return driver_call<CUgraph, CUgraphNode *, CUgraphNode *, size_t *>{
                   "cuGraphGetEdges"}(graph, from, to, count);
             })
CUDART_ENTRY(cudaGraphNodeGetDependencies,
             (cudaGraphNode_t node, cudaGraphNode_t *nodes, size_t *count), {
               return driver_call<CUgraphNode, CUgraphNode *, size_t *>{
                   "cuGraphNodeGetDependencies"}(node, nodes, count);
             })
CUDART_ENTRY(cudaGraphNodeGetDependentNodes,
             (cudaGraphNode_t node, cudaGraphNode_t *nodes, size_t *count), {
               return driver_call<CUgraphNode, CUgraphNode *, size_t *>{
                   "cuGraphNodeGetDependentNodes"}(node, nodes, count);
             })
CUDART_ENTRY(cudaGraphAddDependencies,
             (cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
              size_t count),
             {
               return driver_call<CUgraph, const CUgraphNode *, const CUgraphNode *, size_t>{
                   "cuGraphAddDependencies"}(graph, from, to, count);
             })
CUDART_ENTRY(cudaGraphRemoveDependencies,
             (cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
              size_t count),
             {
               return driver_call<CUgraph, const CUgraphNode *, const CUgraphNode *, size_t>{
                   "cuGraphRemoveDependencies"}(graph, from, to, count);
             })
#else
#define CUDART_EDGE_NAME(name) name
#endif

#if CUDART_VERSION >= 12030
// One more level, so that the name is expanded.
#define CUDART_EDGE_ENTRY(name, ...) CUDART_ENTRY(name, __VA_ARGS__)

CUDART_EDGE_ENTRY(
    CUDART_EDGE_NAME(cudaGraphGetEdges),
    (cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *edges,
     size_t *count),
    {
      return driver_call<CUgraph, CUgraphNode *, CUgraphNode *, cudaGraphEdgeData *, size_t *>{
          "cuGraphGetEdges_v2"}(graph, from, to, edges, count);
    })
CUDART_EDGE_ENTRY(CUDART_EDGE_NAME(cudaGraphNodeGetDependencies),
                  (cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *edges,
                   size_t *count),
                  {
                    return driver_call<CUgraphNode, CUgraphNode *, cudaGraphEdgeData *, size_t *>{
                        "cuGraphNodeGetDependencies_v2"}(node, nodes, edges, count);
                  })
CUDART_EDGE_ENTRY(CUDART_EDGE_NAME(cudaGraphNodeGetDependentNodes),
                  (cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *edges,
                   size_t *count),
                  {
                    return driver_call<CUgraphNode, CUgraphNode *, cudaGraphEdgeData *, size_t *>{
                        "cuGraphNodeGetDependentNodes_v2"}(node, nodes, edges, count);
                  })
CUDART_EDGE_ENTRY(CUDART_EDGE_NAME(cudaGraphAddDependencies),
                  (cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                   const cudaGraphEdgeData *edges, size_t count),
                  {
                    return driver_call<CUgraph, const CUgraphNode *, const CUgraphNode *,
                                       const cudaGraphEdgeData *, size_t>{
                        "cuGraphAddDependencies_v2"}(graph, from, to, edges, count);
                  })
CUDART_EDGE_ENTRY(CUDART_EDGE_NAME(cudaGraphRemoveDependencies),
                  (cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                   const cudaGraphEdgeData *edges, size_t count),
                  {
                    return driver_call<CUgraph, const CUgraphNode *, const CUgraphNode *,
                                       const cudaGraphEdgeData *, size_t>{
                        "cuGraphRemoveDependencies_v2"}(graph, from, to, edges, count);
                  })
#endif
