// cuGraphAdd*Node and the parameters of nodes.
#include <cstring>
#include <utility>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/graph_nodes.h"

using namespace hostcuda;

namespace {

// Where a node goes.
struct new_node {
  CUgraphNode *out;
  CUgraph graph;
  const CUgraphNode *after;
  size_t count;
};

CUresult add_made(const new_node &n, CUresult made, operation &&op) {
  return made != CUDA_SUCCESS ? made : add_node(n.out, n.graph, n.after, n.count, std::move(op));
}

CUresult set_made(CUgraphExec exec, CUgraphNode node, CUresult made, operation &&op) {
  return made != CUDA_SUCCESS ? made : set_node(exec, node, std::move(op));
}

CUDA_KERNEL_NODE_PARAMS without_kern(const CUDA_KERNEL_NODE_PARAMS_v1 &p) {
  CUDA_KERNEL_NODE_PARAMS out{};
  std::memcpy(&out, &p, sizeof p);  // the newer structure begins with the older one
  return out;
}

#if CUDA_VERSION >= 12030
CUresult make_any_node(CUgraphNodeParams *p, operation *op) {
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS values{};
      std::memcpy(&values, &p->kernel, sizeof values);
      return make_kernel_node(values, op);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return make_copy_node(p->memcpy.copyParams, p->memcpy.copyCtx, op);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS values{};
      std::memcpy(&values, &p->memset, sizeof values);
      return make_fill_node(values, p->memset.ctx, op);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      return make_host_node({p->host.fn, p->host.userData}, op);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return make_child_node(p->graph.graph, op);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      op->type = CU_GRAPH_NODE_TYPE_EMPTY;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return make_event_node(p->type, p->eventWait.event, op);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return make_event_node(p->type, p->eventRecord.event, op);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS values{};
      std::memcpy(&values, &p->alloc, sizeof values);
      const CUresult r = make_alloc_node(&values, op);
      p->alloc.dptr = values.dptr;
      return r;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return make_free_node(p->free.dptr, op);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult add_any_node(const new_node &n, const CUgraphEdgeData *data, CUgraphNodeParams *p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static constexpr CUgraphEdgeData none{};
  for (size_t i = 0; data != nullptr && i < n.count; ++i)
    if (std::memcmp(&data[i], &none, sizeof none) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  operation op{"", {}, {}};
  const CUresult made = make_any_node(p, &op);
  const CUresult r = add_made(n, made, std::move(op));
  if (r == CUDA_SUCCESS && p->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    child_params child;
    if (get_params(*n.out, p->type, &child) == CUDA_SUCCESS) p->graph.graph = child.child->handle;
  }
  return r;
}

CUresult set_any_node(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  operation op{"", {}, {}};
  const bool memory =
      p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || p->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
  const CUresult made = memory ? CUDA_ERROR_INVALID_VALUE : make_any_node(p, &op);
  return set_made(exec, node, made, std::move(op));
}
#endif

}  // namespace

#define HOSTCUDA_ADD_NODE(name, since, extra, ...)                                   \
  HOSTCUDA_ENTRY(name, since, plain, 0,                                              \
                 (CUgraphNode * out, CUgraph graph, const CUgraphNode *after,        \
                  size_t count HOSTCUDA_UNPACK extra),                               \
                 {                                                                   \
                   operation op{"", {}, {}};                                         \
                   const CUresult made = __VA_ARGS__;                                \
                   return add_made({out, graph, after, count}, made, std::move(op)); \
                 })
#define HOSTCUDA_UNLESS_NULL(p, ...) ((p) == nullptr ? CUDA_ERROR_INVALID_VALUE : (__VA_ARGS__))

HOSTCUDA_ADD_NODE(cuGraphAddKernelNode, 10000, (, const CUDA_KERNEL_NODE_PARAMS_v1 *p),
                  HOSTCUDA_UNLESS_NULL(p, make_kernel_node(without_kern(*p), &op)))
HOSTCUDA_ADD_NODE(cuGraphAddKernelNode_v2, 12000, (, const CUDA_KERNEL_NODE_PARAMS *p),
                  HOSTCUDA_UNLESS_NULL(p, make_kernel_node(*p, &op)))
HOSTCUDA_ADD_NODE(cuGraphAddMemcpyNode, 10000, (, const CUDA_MEMCPY3D *p, CUcontext ctx),
                  HOSTCUDA_UNLESS_NULL(p, make_copy_node(*p, ctx, &op)))
HOSTCUDA_ADD_NODE(cuGraphAddMemsetNode, 10000, (, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx),
                  HOSTCUDA_UNLESS_NULL(p, make_fill_node(*p, ctx, &op)))
HOSTCUDA_ADD_NODE(cuGraphAddHostNode, 10000, (, const CUDA_HOST_NODE_PARAMS *p),
                  HOSTCUDA_UNLESS_NULL(p, make_host_node(*p, &op)))
HOSTCUDA_ADD_NODE(cuGraphAddChildGraphNode, 10000, (, CUgraph child), make_child_node(child, &op))
HOSTCUDA_ADD_NODE(cuGraphAddEmptyNode, 10000, (),
                  (op.type = CU_GRAPH_NODE_TYPE_EMPTY, CUDA_SUCCESS))
HOSTCUDA_ADD_NODE(cuGraphAddEventRecordNode, 11010, (, CUevent event),
                  make_event_node(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &op))
HOSTCUDA_ADD_NODE(cuGraphAddEventWaitNode, 11010, (, CUevent event),
                  make_event_node(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &op))
HOSTCUDA_ADD_NODE(cuGraphAddMemAllocNode, 11040, (, CUDA_MEM_ALLOC_NODE_PARAMS *p),
                  HOSTCUDA_UNLESS_NULL(p, make_alloc_node(p, &op)))
HOSTCUDA_ADD_NODE(cuGraphAddMemFreeNode, 11040, (, CUdeviceptr at), make_free_node(at, &op))

// The set functions of a graph and of an executable graph.
#define HOSTCUDA_SET_NODE(name, since, exec_name, exec_since, params, exec_params, ...) \
  HOSTCUDA_ENTRY(name, since, plain, 0, params, {                                       \
    const CUgraphExec exec = nullptr;                                                   \
    [[maybe_unused]] const CUcontext ctx = nullptr;                                     \
    operation op{"", {}, {}};                                                           \
    const CUresult made = __VA_ARGS__;                                                  \
    return set_made(exec, node, made, std::move(op));                                   \
  })                                                                                    \
  HOSTCUDA_ENTRY(exec_name, exec_since, plain, 0, exec_params, {                        \
    operation op{"", {}, {}};                                                           \
    const CUresult made = __VA_ARGS__;                                                  \
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;                               \
    return set_made(exec, node, made, std::move(op));                                   \
  })

HOSTCUDA_SET_NODE(cuGraphKernelNodeSetParams, 10000, cuGraphExecKernelNodeSetParams, 10010,
                  (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p),
                  (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p),
                  HOSTCUDA_UNLESS_NULL(p, make_kernel_node(without_kern(*p), &op)))
HOSTCUDA_SET_NODE(cuGraphKernelNodeSetParams_v2, 12000, cuGraphExecKernelNodeSetParams_v2, 12000,
                  (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p),
                  (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p),
                  HOSTCUDA_UNLESS_NULL(p, make_kernel_node(*p, &op)))
HOSTCUDA_SET_NODE(cuGraphMemcpyNodeSetParams, 10000, cuGraphExecMemcpyNodeSetParams, 10020,
                  (CUgraphNode node, const CUDA_MEMCPY3D *p),
                  (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext ctx),
                  HOSTCUDA_UNLESS_NULL(p, make_copy_node(*p, ctx, &op)))
HOSTCUDA_SET_NODE(cuGraphMemsetNodeSetParams, 10000, cuGraphExecMemsetNodeSetParams, 10020,
                  (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p),
                  (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p,
                   CUcontext ctx),
                  HOSTCUDA_UNLESS_NULL(p, make_fill_node(*p, ctx, &op)))
HOSTCUDA_SET_NODE(cuGraphHostNodeSetParams, 10000, cuGraphExecHostNodeSetParams, 10020,
                  (CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p),
                  (CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p),
                  HOSTCUDA_UNLESS_NULL(p, make_host_node(*p, &op)))
HOSTCUDA_SET_NODE(cuGraphEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent, 11010,
                  (CUgraphNode node, CUevent event),
                  (CUgraphExec exec, CUgraphNode node, CUevent event),
                  make_event_node(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &op))
HOSTCUDA_SET_NODE(cuGraphEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent, 11010,
                  (CUgraphNode node, CUevent event),
                  (CUgraphExec exec, CUgraphNode node, CUevent event),
                  make_event_node(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &op))

HOSTCUDA_ENTRY(cuGraphExecChildGraphNodeSetParams, 11010, plain, 0,
               (CUgraphExec exec, CUgraphNode node, CUgraph child), {
                 operation op{"", {}, {}};
                 const CUresult made = make_child_node(child, &op);
                 if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return set_made(exec, node, made, std::move(op));
               })

// A get function: `params` are those of the node, of which `value` is returned.
#define HOSTCUDA_GET_NODE(name, since, node_type, params_type, out_type, value)   \
  HOSTCUDA_ENTRY(name, since, plain, 0, (CUgraphNode node, out_type * out), {     \
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;                          \
    params_type params;                                                           \
    const CUresult r = get_params(node, CU_GRAPH_NODE_TYPE_##node_type, &params); \
    if (r == CUDA_SUCCESS) *out = value;                                          \
    return r;                                                                     \
  })

HOSTCUDA_ENTRY(cuGraphKernelNodeGetParams, 10000, plain, 0,
               (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 kernel_params p;
                 const CUresult r = get_params(node, CU_GRAPH_NODE_TYPE_KERNEL, &p);
                 if (r == CUDA_SUCCESS) std::memcpy(out, &p.values, sizeof *out);
                 return r;
               })
HOSTCUDA_GET_NODE(cuGraphKernelNodeGetParams_v2, 12000, KERNEL, kernel_params,
                  CUDA_KERNEL_NODE_PARAMS, params.values)
HOSTCUDA_GET_NODE(cuGraphMemcpyNodeGetParams, 10000, MEMCPY, copy_params, CUDA_MEMCPY3D,
                  params.values)
HOSTCUDA_GET_NODE(cuGraphMemsetNodeGetParams, 10000, MEMSET, fill_params, CUDA_MEMSET_NODE_PARAMS,
                  params.values)
HOSTCUDA_GET_NODE(cuGraphHostNodeGetParams, 10000, HOST, CUDA_HOST_NODE_PARAMS,
                  CUDA_HOST_NODE_PARAMS, params)
HOSTCUDA_GET_NODE(cuGraphChildGraphNodeGetGraph, 10000, GRAPH, child_params, CUgraph,
                  params.child->handle)
HOSTCUDA_GET_NODE(cuGraphEventRecordNodeGetEvent, 11010, EVENT_RECORD, event_params, CUevent,
                  params.event)
HOSTCUDA_GET_NODE(cuGraphEventWaitNodeGetEvent, 11010, WAIT_EVENT, event_params, CUevent,
                  params.event)
HOSTCUDA_GET_NODE(cuGraphMemFreeNodeGetParams, 11040, MEM_FREE, free_params, CUdeviceptr, params.at)
HOSTCUDA_ENTRY(cuGraphMemAllocNodeGetParams, 11040, plain, 0,
               (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 alloc_params p;
                 const CUresult r = get_params(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &p);
                 if (r == CUDA_SUCCESS) *out = p.values;
                 return r;
               })

#if CUDA_VERSION >= 12030
HOSTCUDA_ENTRY(cuGraphAddNode, 12020, plain, 0,
               (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count,
                CUgraphNodeParams *p),
               {
                 return add_any_node({out, graph, after, count}, nullptr, p);
               })
HOSTCUDA_ENTRY(cuGraphAddNode_v2, 12030, plain, 0,
               (CUgraphNode * out, CUgraph graph, const CUgraphNode *after,
                const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *p),
               {
                 return add_any_node({out, graph, after, count}, data, p);
               })
HOSTCUDA_ENTRY(cuGraphNodeSetParams, 12020, plain, 0, (CUgraphNode node, CUgraphNodeParams *p),
               { return set_any_node(nullptr, node, p); })
HOSTCUDA_ENTRY(cuGraphExecNodeSetParams, 12020, plain, 0,
               (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p), {
                 if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return set_any_node(exec, node, p);
               })
#else
HOSTCUDA_NOT_PROVIDED(cuGraphAddNode, 12020)
HOSTCUDA_NOT_PROVIDED(cuGraphAddNode_v2, 12030)
HOSTCUDA_NOT_PROVIDED(cuGraphNodeSetParams, 12020)
HOSTCUDA_NOT_PROVIDED(cuGraphExecNodeSetParams, 12020)
#endif
