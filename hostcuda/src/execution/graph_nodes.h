// Makes the operations of nodes from their parameters. Do not require a lock, unless stated.
#pragma once

#include "hostcuda/src/execution/graph.h"

namespace hostcuda {

CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS &p, operation *op);
CUresult make_copy_node(const CUDA_MEMCPY3D &p, CUcontext ctx, operation *op);
CUresult make_fill_node(const CUDA_MEMSET_NODE_PARAMS &p, CUcontext ctx, operation *op);
CUresult make_host_node(const CUDA_HOST_NODE_PARAMS &p, operation *op);
CUresult make_event_node(CUgraphNodeType type, CUevent event, operation *op);
CUresult make_child_node(CUgraph child, operation *op);
// Writes the address to `p`.
CUresult make_alloc_node(CUDA_MEM_ALLOC_NODE_PARAMS *p, operation *op);
CUresult make_free_node(CUdeviceptr at, operation *op);

// Adds a node. Errors: INVALID_VALUE for a dependency of another graph or one that is given twice.
CUresult add_node(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                  operation &&op);
// Replaces the parameters of a node, which must have the type of `op`: `exec` nullptr: of a graph.
CUresult set_node(CUgraphExec exec, CUgraphNode node, operation &&op);
// The parameters of a node; nullptr if it is unknown or has others.
template <class Params>
CUresult get_params(CUgraphNode handle, CUgraphNodeType type, Params *out) {
  engine_lock lock(the_engine().mu);
  const graph_node *const n = find_node(handle);
  if (n == nullptr || n->op.type != type || !n->op.params) return CUDA_ERROR_INVALID_VALUE;
  const auto *const p = std::get_if<Params>(&n->op.params->of);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = *p;
  return CUDA_SUCCESS;
}

}  // namespace hostcuda
