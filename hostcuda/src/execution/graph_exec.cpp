// Executable graphs: instantiation, launch and update.
#include <algorithm>
#include <chrono>
#include <utility>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/event.h"
#include "hostcuda/src/execution/graph.h"

namespace hostcuda {
namespace {

using moments = std::vector<std::shared_ptr<moment>>;  // of the record nodes, in the plan's order

// Runs all nodes on the calling worker in an order that satisfies their dependencies. `seed`
// selects the order, so that tests do not rely on the order of creation.
CUresult run_plan(const graph_plan &plan, std::uint64_t seed, const moments &recorded) {
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
    for (std::size_t k = 0; k < recorded.size(); ++k) {
      if (plan.records[k].first == i) recorded[k]->when = std::chrono::steady_clock::now();
    }
    for (const std::size_t next : plan.successors[i]) {
      if (--indegree[next] == 0) ready.push_back(next);
    }
  }
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags,
                     CUgraphNode *error_node) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned long long allowed = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                         CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                         CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & ~allowed) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto &e = the_engine();
  engine_lock lock(e.mu);
  const auto g = find_graph(handle);
  if (!g || g->capturing) return CUDA_ERROR_INVALID_VALUE;
  const bool memory = has_memory_nodes(*g);
  if (memory && !g->instance.expired()) return CUDA_ERROR_NOT_SUPPORTED;  // one at a time
  const graph_node *bad = nullptr;
  auto exec = std::make_shared<graph_exec>();
  exec->flags = flags;
  exec->plan = make_plan(*g, &bad);
  if (!exec->plan) {
    if (error_node != nullptr) *error_node = const_cast<graph_node *>(bad)->handle();
    return CUDA_ERROR_INVALID_VALUE;
  }
  exec->body = copy_graph(*g, false);
  if (memory) g->instance = exec;
  *out = new_handle<CUgraphExec>(4);
  e.graph_execs[*out] = std::move(exec);
  return CUDA_SUCCESS;
}

CUresult instantiate_with_params(CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  const CUresult r = instantiate(exec, graph, params->flags, &params->hErrNode_out);
  params->result_out = r == CUDA_SUCCESS                 ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                       : params->hErrNode_out != nullptr ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                         : CUDA_GRAPH_INSTANTIATE_ERROR;
  return r;
}

// Whether the memory of the graph can be allocated and freed by one more launch.
CUresult check_memory(const graph_plan &plan, bool auto_free) {
  const auto mine = [&](CUdeviceptr at) {
    return std::find(plan.allocates.begin(), plan.allocates.end(), at) != plan.allocates.end();
  };
  for (const CUdeviceptr at : plan.allocates) {
    const bool allocated = state_of_graph_memory(at) == graph_memory_state::allocated;
    if (allocated && !auto_free) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const CUdeviceptr at : plan.frees) {
    if (!mine(at) && state_of_graph_memory(at) != graph_memory_state::allocated)
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// The events of record nodes are recorded by the launch, and complete with it.
void record_events(const graph_plan &plan, const moments &at, const stream &s, const node &n) {
  for (std::size_t k = 0; k < at.size(); ++k) {
    const auto ev = find_event(plan.records[k].second);
    at[k]->line = s.line;
    at[k]->tick = n.tick;
    at[k]->clock = s.view;
    at[k]->clock.join(s.line, n.tick);
    if (!ev) continue;
    ev->last = at[k];
    ev->cap.reset();
    ev->cap_tail.clear();
  }
}

CUresult launch_graph(CUgraphExec handle, CUstream stream) {
  std::shared_ptr<graph_exec> exec;
  std::shared_ptr<const graph_plan> plan;
  std::uint64_t seed = 0;
  {
    auto &e = the_engine();
    engine_lock lock(e.mu);
    exec = find_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    plan = exec->plan;
    const auto &settings = current_settings();
    if (settings.schedule != schedule_kind::threads) seed = mix(settings.seed, e.next_serial) | 1;
  }
  if (!plan->allocates.empty() || !plan->frees.empty()) {
    stream_order order;
    if (const CUresult r = order_of(stream, &order); r != CUDA_SUCCESS) return r;
    if (order.capturing) return CUDA_ERROR_NOT_SUPPORTED;  // a child graph has no memory nodes
    const bool auto_free = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    if (const CUresult r = check_memory(*plan, auto_free); r != CUDA_SUCCESS) return r;
  }
  moments recorded;
  for (std::size_t i = 0; i < plan->records.size(); ++i)
    recorded.push_back(std::make_shared<moment>());
  operation op{"cuGraphLaunch", plan->touches,
               [plan, seed, recorded] { return run_plan(*plan, seed, recorded); }};
  op.type = CU_GRAPH_NODE_TYPE_GRAPH;
  op.describe = [&exec] { return share_params(child_params{exec->body}); };
  op.waits = [plan](vector_clock *clock) {
    for (const CUevent event : plan->waits) {
      const auto ev = find_event(event);
      if (ev && ev->last) clock->join(ev->last->clock);
    }
  };
  op.queued = [plan, recorded](const hostcuda::stream &s, const node &n) {
    record_events(*plan, recorded, s, n);
  };
  const CUresult r = enqueue(stream, std::move(op));
  if (r != CUDA_SUCCESS) return r;
  for (const CUdeviceptr at : plan->allocates) set_graph_memory(at, true);
  for (const CUdeviceptr at : plan->frees) set_graph_memory(at, false);
  return CUDA_SUCCESS;
}

CUresult update_exec(CUgraphExec exec_handle, CUgraph graph_handle, graph_difference *difference) {
  std::shared_ptr<graph> old_body;  // these are destroyed without the lock
  std::shared_ptr<const graph_plan> old_plan;
  engine_lock lock(the_engine().mu);
  const auto exec = find_exec(exec_handle);
  const auto g = find_graph(graph_handle);
  difference->result = CU_GRAPH_EXEC_UPDATE_ERROR;
  if (!exec || !g) return CUDA_ERROR_INVALID_VALUE;
  *difference = compare_graphs(*exec->body, *g);
  if (difference->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  auto body = copy_graph(*g, false);
  keep_origins(*exec->body, body.get());
  const graph_node *bad = nullptr;
  auto plan = make_plan(*body, &bad);
  if (!plan) {
    difference->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  old_body = std::exchange(exec->body, std::move(body));
  old_plan = std::exchange(exec->plan, std::move(plan));
  lock.unlock();
  return CUDA_SUCCESS;
}

CUresult enable_node(CUgraphExec exec_handle, CUgraphNode handle, unsigned *get, unsigned set) {
  std::shared_ptr<const graph_plan> old_plan;  // destroyed without the lock
  engine_lock lock(the_engine().mu);
  const auto exec = find_exec(exec_handle);
  const graph_node *const of_graph = find_node(handle);
  if (!exec || of_graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  graph_node *const n = find_copy(*exec->body, of_graph->id);
  if (n == nullptr || n->op.type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
  if (get != nullptr) {
    *get = n->enabled ? 1 : 0;
    return CUDA_SUCCESS;
  }
  n->enabled = set != 0;
  const graph_node *bad = nullptr;
  old_plan = std::exchange(exec->plan, make_plan(*exec->body, &bad));
  lock.unlock();
  return CUDA_SUCCESS;
}

CUresult destroy_exec(CUgraphExec handle) {
  std::shared_ptr<graph_exec> gone;  // destroyed without the lock
  engine_lock lock(the_engine().mu);
  gone = find_exec(handle);
  if (!gone) return CUDA_ERROR_INVALID_VALUE;
  the_engine().graph_execs.erase(handle);
  lock.unlock();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

static CUresult instantiate_with_log(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                     char *log, size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) *log = '\0';
  return instantiate(exec, graph, 0, error_node);
}
HOSTCUDA_ENTRY(cuGraphInstantiate, 10000, plain, 0,
               (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log,
                size_t log_bytes),
               { return instantiate_with_log(exec, graph, error_node, log, log_bytes); })
HOSTCUDA_ENTRY(cuGraphInstantiate_v2, 11000, plain, 0,
               (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log,
                size_t log_bytes),
               { return instantiate_with_log(exec, graph, error_node, log, log_bytes); })

HOSTCUDA_ENTRY(cuGraphInstantiateWithFlags, 11040, plain, 0,
               (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
               { return instantiate(exec, graph, flags, nullptr); })

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
                        return find_exec(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
                      })

HOSTCUDA_ENTRY(cuGraphExecDestroy, 10000, ignores_sticky, 0, (CUgraphExec exec),
               { return destroy_exec(exec); })

HOSTCUDA_ENTRY(cuGraphExecGetFlags, 12000, plain, 0, (CUgraphExec exec, cuuint64_t *flags), {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto found = find_exec(exec);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->flags;
  return CUDA_SUCCESS;
})

HOSTCUDA_ENTRY(cuGraphNodeSetEnabled, 11060, plain, 0,
               (CUgraphExec exec, CUgraphNode node, unsigned enabled),
               { return enable_node(exec, node, nullptr, enabled); })

HOSTCUDA_ENTRY(cuGraphNodeGetEnabled, 11060, plain, 0,
               (CUgraphExec exec, CUgraphNode node, unsigned *enabled), {
                 if (enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return enable_node(exec, node, enabled, 0);
               })

HOSTCUDA_ENTRY(cuGraphExecUpdate, 10020, plain, 0,
               (CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                CUgraphExecUpdateResult *result),
               {
                 if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 graph_difference d;
                 const CUresult r = update_exec(exec, graph, &d);
                 *result = d.result;
                 if (error_node != nullptr)
                   *error_node = d.node != nullptr ? d.node->handle() : nullptr;
                 return r;
               })

HOSTCUDA_ENTRY(cuGraphExecUpdate_v2, 12000, plain, 0,
               (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info), {
                 if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 graph_difference d;
                 const CUresult r = update_exec(exec, graph, &d);
                 *info = {d.result, d.node != nullptr ? d.node->handle() : nullptr,
                          d.from != nullptr ? d.from->handle() : nullptr};
                 return r;
               })
