#include "hostcuda/src/execution/graph.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/capture.h"

namespace hostcuda {
namespace {

std::shared_ptr<graph> find_graph(CUgraph handle) {
  auto &e = the_engine();
  if (const auto found = e.graphs.find(handle); found != e.graphs.end()) return found->second;
  for (const auto &cap : e.captures) {
    if (cap->into->handle == handle) return cap->into;  // the capture is in progress
  }
  return nullptr;
}

std::shared_ptr<const graph_plan> make_plan(const graph &g) {
  auto plan = std::make_shared<graph_plan>();
  const std::size_t count = g.nodes.size();
  plan->successors.resize(count);
  plan->indegree.resize(count);
  std::map<std::tuple<CUdeviceptr, std::size_t, bool>, bool> seen;
  for (std::size_t i = 0; i < count; ++i) {
    plan->ops.push_back(g.nodes[i]->op);
    plan->indegree[i] = g.nodes[i]->after.size();
    for (const graph_node *before : g.nodes[i]->after) plan->successors[before->index].push_back(i);
    for (const touch &t : g.nodes[i]->op.touches) {
      if (seen.try_emplace({t.at, t.bytes, t.write}, true).second) plan->touches.push_back(t);
    }
  }
  return plan;
}

// Runs all nodes on the calling worker in an order that satisfies their dependencies. `seed`
// selects the order, so that tests do not rely on the order of capture.
CUresult run_plan(const graph_plan &plan, std::uint64_t seed) {
  auto indegree = plan.indegree;
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < indegree.size(); ++i) {
    if (indegree[i] == 0) ready.push_back(i);
  }
  std::uint64_t step = 0;
  while (!ready.empty()) {
    const std::size_t pick = seed == 0 ? 0 : mix(seed, step++) % ready.size();
    const std::size_t i = ready[pick];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(pick));
    const operation &op = plan.ops[i];
    if (op.body) {
      if (const CUresult r = op.body(); r != CUDA_SUCCESS) return r;
    }
    for (const std::size_t next : plan.successors[i]) {
      if (--indegree[next] == 0) ready.push_back(next);
    }
  }
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned long long allowed = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                         CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                         CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & ~allowed) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto found = e.graphs.find(handle);
  if (found == e.graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  auto exec = std::make_shared<graph_exec>();
  exec->ctx = found->second->ctx;
  exec->flags = flags;
  exec->plan = make_plan(*found->second);
  *out = new_handle<CUgraphExec>(4);
  e.graph_execs[*out] = std::move(exec);
  return CUDA_SUCCESS;
}

CUresult launch_graph(CUgraphExec handle, CUstream stream) {
  std::shared_ptr<const graph_plan> plan;
  std::uint64_t seed = 0;
  {
    auto &e = the_engine();
    engine_lock lock(e.mu);
    const auto found = e.graph_execs.find(handle);
    if (found == e.graph_execs.end()) return CUDA_ERROR_INVALID_VALUE;
    plan = found->second->plan;
    const auto &settings = current_settings();
    if (settings.schedule != schedule_kind::threads) seed = mix(settings.seed, e.next_serial) | 1;
  }
  operation op{"cuGraphLaunch", plan->touches, [plan, seed] { return run_plan(*plan, seed); }};
  op.type = CU_GRAPH_NODE_TYPE_GRAPH;
  return enqueue(stream, std::move(op));
}

// Lists node handles. With `out`, copies up to *count handles, sets the rest to NULL and *count to
// the number copied. Without `out`, sets *count to the number of nodes.
CUresult list_nodes(CUgraph handle, CUgraphNode *out, size_t *count, bool roots_only) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(handle);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> all;
  for (const auto &n : g->nodes) {
    if (!roots_only || n->after.empty()) all.push_back(reinterpret_cast<CUgraphNode>(n.get()));
  }
  if (out == nullptr) {
    *count = all.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < all.size() ? all[i] : nullptr;
  *count = std::min(*count, all.size());
  return CUDA_SUCCESS;
}

CUresult node_type(CUgraphNode handle, CUgraphNodeType *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto look = [&](const graph &g) {
    for (const auto &n : g.nodes) {
      if (reinterpret_cast<CUgraphNode>(n.get()) != handle) continue;
      *out = n->op.type;
      return true;
    }
    return false;
  };
  for (const auto &entry : e.graphs) {
    if (look(*entry.second)) return CUDA_SUCCESS;
  }
  for (const auto &cap : e.captures) {
    if (look(*cap->into)) return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

template <class Map, class Handle>
CUresult destroy_in(Map &map, Handle handle) {
  typename Map::mapped_type gone;  // destroyed without the lock
  engine_lock lock(the_engine().mu);
  const auto found = map.find(handle);
  if (found == map.end()) return CUDA_ERROR_INVALID_VALUE;
  gone = std::move(found->second);
  map.erase(found);
  lock.unlock();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuGraphGetNodes, 10000, plain, 0, (CUgraph graph, CUgraphNode *nodes, size_t *count),
               { return list_nodes(graph, nodes, count, false); })

HOSTCUDA_ENTRY(cuGraphGetRootNodes, 10000, plain, 0,
               (CUgraph graph, CUgraphNode *nodes, size_t *count),
               { return list_nodes(graph, nodes, count, true); })

HOSTCUDA_ENTRY(cuGraphNodeGetType, 10000, plain, 0, (CUgraphNode node, CUgraphNodeType *type),
               { return node_type(node, type); })

HOSTCUDA_ENTRY(cuGraphInstantiateWithFlags, 11040, plain, 0,
               (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
               { return instantiate(exec, graph, flags); })

HOSTCUDA_ENTRY(cuGraphInstantiate_v2, 11000, plain, 0,
               (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log,
                size_t log_bytes),
               {
                 if (error_node != nullptr) *error_node = nullptr;
                 if (log != nullptr && log_bytes != 0) *log = '\0';
                 return instantiate(exec, graph, 0);
               })

static CUresult instantiate_with_params(CUgraphExec *exec, CUgraph graph,
                                        CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  const CUresult r = instantiate(exec, graph, params->flags);
  params->result_out =
      r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return r;
}
HOSTCUDA_ENTRY(cuGraphInstantiateWithParams, 12000, plain, 0,
               (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
               { return instantiate_with_params(exec, graph, params); })
HOSTCUDA_ENTRY(cuGraphInstantiateWithParams_ptsz, 12000, plain, 0,
               (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
               { return instantiate_with_params(exec, graph, params); })

HOSTCUDA_STREAM_ENTRY(cuGraphLaunch, 10000, plain, 0, stream, (CUgraphExec exec, CUstream stream),
                      (exec, stream), { return launch_graph(exec, stream); })

// Checks the handles only, because graphs are not stored on a device.
HOSTCUDA_STREAM_ENTRY(cuGraphUpload, 11010, plain, 0, stream, (CUgraphExec exec, CUstream stream),
                      (exec, stream), {
                        stream_call call(stream);
                        if (!call.s) return call.error();
                        return the_engine().graph_execs.contains(exec) ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
                      })

HOSTCUDA_ENTRY(cuGraphDestroy, 10000, ignores_sticky, 0, (CUgraph graph),
               { return destroy_in(the_engine().graphs, graph); })

HOSTCUDA_ENTRY(cuGraphExecDestroy, 10000, ignores_sticky, 0, (CUgraphExec exec),
               { return destroy_in(the_engine().graph_execs, exec); })
