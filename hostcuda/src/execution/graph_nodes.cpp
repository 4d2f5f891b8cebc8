#include "hostcuda/src/execution/graph_nodes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "hostcuda/src/device.h"
#include "hostcuda/src/execution/event.h"
#include "hostcuda/src/execution/kernel.h"
#include "hostcuda/src/execution/module.h"
#include "hostcuda/src/memory/copy.h"

namespace hostcuda {
namespace {

// The context of a memory node: the given one, or the current one.
CUresult node_context(CUcontext handle, context **out) {
  *out = handle != nullptr ? find_context(handle) : current_context();
  return *out != nullptr && (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// The nodes of an array of handles. Returns false if one is not of `g`, or is given twice.
bool nodes_of(const graph &g, const CUgraphNode *handles, std::size_t count,
              std::vector<graph_node *> *out) {
  std::set<graph_node *> seen;
  for (std::size_t i = 0; i < count; ++i) {
    graph_node *const n = find_node(handles[i]);
    if (n == nullptr || n->owner != &g || !seen.insert(n).second) return false;
    out->push_back(n);
  }
  return true;
}

bool frees_already(const graph &g, CUdeviceptr at) {
  return std::any_of(g.nodes.begin(), g.nodes.end(), [&](const auto &n) {
    const auto *const p = n->op.params ? std::get_if<free_params>(&n->op.params->of) : nullptr;
    return p != nullptr && p->at == at;
  });
}

}  // namespace

CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS &p, operation *op) {
  context *ctx = nullptr;
  CUfunction handle = p.func;
  if (handle == nullptr) {
    if (const CUresult r = node_context(p.ctx, &ctx); r != CUDA_SUCCESS) return r;
    handle = reinterpret_cast<CUfunction>(p.kern);
  }
  const auto f = find_function(handle, ctx);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  return make_launch(*f,
                     {{p.gridDimX, p.gridDimY, p.gridDimZ},
                      {p.blockDimX, p.blockDimY, p.blockDimZ},
                      p.sharedMemBytes},
                     p.kernelParams, p.extra, op);
}

CUresult make_copy_node(const CUDA_MEMCPY3D &p, CUcontext ctx, operation *op) {
  context *where = nullptr;
  if (const CUresult r = node_context(ctx, &where); r != CUDA_SUCCESS) return r;
  copy_request request;
  CUresult r = describe_copy("cuGraphAddMemcpyNode", p, where->device, &request);
  if (r == CUDA_SUCCESS && (p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0))
    r = CUDA_ERROR_INVALID_VALUE;
  if (r == CUDA_SUCCESS) r = make_copy(request, op);
  op->params = share_params(copy_params{p, handle_of(where)});
  return r;
}

CUresult make_fill_node(const CUDA_MEMSET_NODE_PARAMS &p, CUcontext ctx, operation *op) {
  context *where = nullptr;
  if (const CUresult r = node_context(ctx, &where); r != CUDA_SUCCESS) return r;
  const CUresult r = make_memset(p, where->device, op);
  op->params = share_params(fill_params{p, handle_of(where)});
  return r;
}

CUresult make_host_node(const CUDA_HOST_NODE_PARAMS &p, operation *op) {
  if (p.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  op->what = "cuLaunchHostFunc";
  op->type = CU_GRAPH_NODE_TYPE_HOST;
  op->body = [p] {
    p.fn(p.userData);
    return CUDA_SUCCESS;
  };
  op->params = share_params(p);
  return CUDA_SUCCESS;
}

CUresult make_event_node(CUgraphNodeType type, CUevent event, operation *op) {
  engine_lock lock(the_engine().mu);
  if (!find_event(event)) return CUDA_ERROR_INVALID_VALUE;
  op->what = type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ? "cuStreamWaitEvent" : "cuEventRecord";
  op->type = type;
  op->params = share_params(event_params{event});
  return CUDA_SUCCESS;
}

CUresult make_child_node(CUgraph child, operation *op) {
  engine_lock lock(the_engine().mu);
  auto g = find_graph(child);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(*g)) return CUDA_ERROR_NOT_SUPPORTED;
  op->what = "cuGraphLaunch";
  op->type = CU_GRAPH_NODE_TYPE_GRAPH;
  op->params = share_params(child_params{std::move(g)});  // append_node() copies it
  return CUDA_SUCCESS;
}

CUresult make_alloc_node(CUDA_MEM_ALLOC_NODE_PARAMS *p, operation *op) {
  const CUmemPoolProps &props = p->poolProps;
  if (p->bytesize == 0 || props.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      props.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      props.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(props.location.id) ||
      (p->accessDescCount != 0 && p->accessDescs == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  alloc_params mine;
  mine.access.assign(p->accessDescs, p->accessDescs + p->accessDescCount);
  for (const CUmemAccessDesc &a : mine.access) {
    if (a.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(a.location.id) ||
        !can_access_peer(a.location.id, props.location.id))
      return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult r = make_graph_memory(props.location.id, p->bytesize, &mine.memory);
  if (r != CUDA_SUCCESS) return r;
  p->dptr = mine.memory->at;
  mine.values = *p;
  *op = graph_alloc_op(mine.memory);
  op->params = share_params(std::move(mine));
  return CUDA_SUCCESS;
}

CUresult make_free_node(CUdeviceptr at, operation *op) {
  if (state_of_graph_memory(at) == graph_memory_state::none) return CUDA_ERROR_INVALID_VALUE;
  *op = graph_free_op(at);
  op->params = share_params(free_params{at});
  return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode *out, CUgraph handle, const CUgraphNode *after, size_t count,
                  operation &&op) {
  if (out == nullptr || (count != 0 && after == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(handle);
  std::vector<graph_node *> before;
  if (!g || !nodes_of(*g, after, count, &before)) return CUDA_ERROR_INVALID_VALUE;
  if (op.params) {
    const auto *const free = std::get_if<free_params>(&op.params->of);
    if (free != nullptr && frees_already(*g, free->at)) return CUDA_ERROR_INVALID_VALUE;
  }
  *out = append_node(*g, std::move(op), std::move(before))->handle();
  return CUDA_SUCCESS;
}

CUresult set_node(CUgraphExec exec_handle, CUgraphNode handle, operation &&op) {
  operation old;  // these are destroyed without the lock
  std::shared_ptr<const graph_plan> gone;
  engine_lock lock(the_engine().mu);
  graph_node *n = find_node(handle);
  if (n == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<graph_exec> exec;
  if (exec_handle != nullptr) {
    exec = find_exec(exec_handle);
    n = exec ? find_copy(*exec->body, n->id) : nullptr;
    if (n == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool rule_broken = compare_nodes(*n, op) != CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (rule_broken) return CUDA_ERROR_INVALID_VALUE;
  } else if (n->op.type != op.type || op.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
             op.type == CU_GRAPH_NODE_TYPE_MEM_FREE || n->child() != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const graph *const child = n->child()) {
    graph *const to = std::get<child_params>(op.params->of).child.get();
    if (compare_graphs(*child, *to).result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
      return CUDA_ERROR_INVALID_VALUE;
    auto copy = copy_graph(*to, false);
    keep_origins(*child, copy.get());
    op.params = share_params(child_params{std::move(copy)});
  }
  old = std::exchange(n->op, std::move(op));
  if (exec) {
    const graph_node *bad = nullptr;
    gone = std::exchange(exec->plan, make_plan(*exec->body, &bad));
  }
  lock.unlock();
  return CUDA_SUCCESS;
}

}  // namespace hostcuda
