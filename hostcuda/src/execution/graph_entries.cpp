// Graphs: creation, nodes, edges and clones.
#include <algorithm>
#include <cstring>
#include <map>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/graph.h"

namespace hostcuda {
namespace {

CUresult create_graph(CUgraph *out, unsigned flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  auto g = make_graph();
  *out = g->handle;
  the_engine().graphs[g->handle] = std::move(g);
  return CUDA_SUCCESS;
}

CUresult destroy_graph(CUgraph handle) {
  std::shared_ptr<graph> gone;  // destroyed without the lock
  engine_lock lock(the_engine().mu);
  const auto found = the_engine().graphs.find(handle);
  if (found == the_engine().graphs.end() || found->second->embedded || found->second->capturing)
    return CUDA_ERROR_INVALID_VALUE;
  gone = std::move(found->second);
  the_engine().graphs.erase(found);
  forget_nodes(*gone);
  lock.unlock();
  return CUDA_SUCCESS;
}

CUresult clone_graph(CUgraph *out, CUgraph handle) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(handle);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  if (has_memory_nodes(*g)) return CUDA_ERROR_NOT_SUPPORTED;
  auto copy = copy_graph(*g, true);
  *out = copy->handle;
  the_engine().graphs[copy->handle] = std::move(copy);
  return CUDA_SUCCESS;
}

CUresult find_in_clone(CUgraphNode *out, CUgraphNode original, CUgraph clone) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const graph_node *const n = find_node(original);
  const auto g = find_graph(clone);
  if (n == nullptr || !g || g->copy_of == 0) return CUDA_ERROR_INVALID_VALUE;
  graph_node *const copy = find_copy(*g, n->id);
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = copy->handle();
  return CUDA_SUCCESS;
}

using node_list = std::vector<graph_node *>;

// With `out`, copies up to *count handles, sets the rest to NULL and *count to the number copied.
// Without `out`, sets *count to the number of nodes.
CUresult hand_out(const node_list &all, CUgraphNode *out, size_t *count) {
  if (out == nullptr) {
    *count = all.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < all.size() ? all[i]->handle() : nullptr;
  *count = std::min(*count, all.size());
  return CUDA_SUCCESS;
}

CUresult list_nodes(CUgraph handle, CUgraphNode *out, size_t *count, bool roots_only) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(handle);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  node_list all;
  for (const auto &n : g->nodes) {
    if (!roots_only || n->after.empty()) all.push_back(n.get());
  }
  return hand_out(all, out, count);
}

CUresult list_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(handle);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  node_list froms, tos;
  for (const auto &n : g->nodes) {
    for (graph_node *before : n->after) {
      froms.push_back(before);
      tos.push_back(n.get());
    }
  }
  size_t room = *count;
  hand_out(froms, from, &room);
  return hand_out(tos, to, count);
}

CUresult list_neighbours(CUgraphNode handle, CUgraphNode *out, size_t *count, bool dependents) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  graph_node *const n = find_node(handle);
  if (n == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!dependents) return hand_out(n->after, out, count);
  node_list all;
  for (const auto &other : n->owner->nodes) {
    if (std::find(other->after.begin(), other->after.end(), n) != other->after.end())
      all.push_back(other.get());
  }
  return hand_out(all, out, count);
}

// Adds or removes edges. Changes nothing if one is not of this graph, exists or does not exist.
// A cycle is found when the graph is instantiated.
CUresult change_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t count,
                      bool add) {
  if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(handle);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  if (!add && has_memory_nodes(*g)) return CUDA_ERROR_NOT_SUPPORTED;
  std::map<graph_node *, node_list> changed;
  for (std::size_t i = 0; i < count; ++i) {
    graph_node *const a = find_node(from[i]);
    graph_node *const b = find_node(to[i]);
    if (a == nullptr || b == nullptr || a->owner != g.get() || b->owner != g.get() || a == b)
      return CUDA_ERROR_INVALID_VALUE;
    auto &after = changed.try_emplace(b, b->after).first->second;
    const auto edge = std::find(after.begin(), after.end(), a);
    if ((edge != after.end()) == add) return CUDA_ERROR_INVALID_VALUE;
    if (add) {
      after.push_back(a);
    } else {
      after.erase(edge);
    }
  }
  for (auto &[node, after] : changed) node->after = std::move(after);
  return CUDA_SUCCESS;
}

CUresult destroy_node(CUgraphNode handle) {
  std::unique_ptr<graph_node> gone;  // destroyed without the lock
  engine_lock lock(the_engine().mu);
  graph_node *const n = find_node(handle);
  if (n == nullptr) return CUDA_ERROR_INVALID_VALUE;
  graph &g = *n->owner;
  if (has_memory_nodes(g)) return CUDA_ERROR_NOT_SUPPORTED;
  for (const auto &other : g.nodes) std::erase(other->after, n);
  if (graph *const child = n->child()) {
    forget_nodes(*child);
    the_engine().graphs.erase(child->handle);
  }
  the_engine().graph_nodes.erase(n);
  gone = std::move(g.nodes[n->index]);
  g.nodes.erase(g.nodes.begin() + static_cast<std::ptrdiff_t>(gone->index));
  for (std::size_t i = gone->index; i < g.nodes.size(); ++i) g.nodes[i]->index = i;
  lock.unlock();
  return CUDA_SUCCESS;
}

CUresult node_type(CUgraphNode handle, CUgraphNodeType *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const graph_node *const n = find_node(handle);
  if (n == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = n->op.type;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuGraphCreate, 10000, plain, 0, (CUgraph * out, unsigned flags),
               { return create_graph(out, flags); })

HOSTCUDA_ENTRY(cuGraphDestroy, 10000, ignores_sticky, 0, (CUgraph graph),
               { return destroy_graph(graph); })

HOSTCUDA_ENTRY(cuGraphClone, 10000, plain, 0, (CUgraph * out, CUgraph graph),
               { return clone_graph(out, graph); })

HOSTCUDA_ENTRY(cuGraphNodeFindInClone, 10000, plain, 0,
               (CUgraphNode * out, CUgraphNode original, CUgraph clone),
               { return find_in_clone(out, original, clone); })

HOSTCUDA_ENTRY(cuGraphGetNodes, 10000, plain, 0, (CUgraph graph, CUgraphNode *nodes, size_t *count),
               { return list_nodes(graph, nodes, count, false); })

HOSTCUDA_ENTRY(cuGraphGetRootNodes, 10000, plain, 0,
               (CUgraph graph, CUgraphNode *nodes, size_t *count),
               { return list_nodes(graph, nodes, count, true); })

HOSTCUDA_ENTRY(cuGraphNodeGetType, 10000, plain, 0, (CUgraphNode node, CUgraphNodeType *type),
               { return node_type(node, type); })

HOSTCUDA_ENTRY(cuGraphDestroyNode, 10000, plain, 0, (CUgraphNode node),
               { return destroy_node(node); })

HOSTCUDA_ENTRY(cuGraphGetEdges, 10000, plain, 0,
               (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count),
               { return list_edges(graph, from, to, count); })

HOSTCUDA_ENTRY(cuGraphNodeGetDependencies, 10000, plain, 0,
               (CUgraphNode node, CUgraphNode *nodes, size_t *count),
               { return list_neighbours(node, nodes, count, false); })

HOSTCUDA_ENTRY(cuGraphNodeGetDependentNodes, 10000, plain, 0,
               (CUgraphNode node, CUgraphNode *nodes, size_t *count),
               { return list_neighbours(node, nodes, count, true); })

HOSTCUDA_ENTRY(cuGraphAddDependencies, 10000, plain, 0,
               (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),
               { return change_edges(graph, from, to, count, true); })

HOSTCUDA_ENTRY(cuGraphRemoveDependencies, 10000, plain, 0,
               (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),
               { return change_edges(graph, from, to, count, false); })

#if CUDA_VERSION >= 12030

// Edges have no data: every dependency is an ordinary one.
static bool has_edge_data(const CUgraphEdgeData *data, size_t count) {
  static constexpr CUgraphEdgeData none{};
  for (size_t i = 0; data != nullptr && i < count; ++i) {
    if (std::memcmp(&data[i], &none, sizeof none) != 0) return true;
  }
  return false;
}

static CUresult without_data(CUresult r, CUgraphEdgeData *data, const size_t *count) {
  if (r == CUDA_SUCCESS && data != nullptr) std::fill_n(data, *count, CUgraphEdgeData{});
  return r;
}

HOSTCUDA_ENTRY(cuGraphGetEdges_v2, 12030, plain, 0,
               (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
                size_t *count),
               {
                 return without_data(list_edges(graph, from, to, count),
                                     from != nullptr ? data : nullptr, count);
               })

HOSTCUDA_ENTRY(cuGraphNodeGetDependencies_v2, 12030, plain, 0,
               (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count), {
                 return without_data(list_neighbours(node, nodes, count, false),
                                     nodes != nullptr ? data : nullptr, count);
               })

HOSTCUDA_ENTRY(cuGraphNodeGetDependentNodes_v2, 12030, plain, 0,
               (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count), {
                 return without_data(list_neighbours(node, nodes, count, true),
                                     nodes != nullptr ? data : nullptr, count);
               })

HOSTCUDA_ENTRY(cuGraphAddDependencies_v2, 12030, plain, 0,
               (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                const CUgraphEdgeData *data, size_t count),
               {
                 if (has_edge_data(data, count)) return CUDA_ERROR_NOT_SUPPORTED;
                 return change_edges(graph, from, to, count, true);
               })

HOSTCUDA_ENTRY(cuGraphRemoveDependencies_v2, 12030, plain, 0,
               (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                const CUgraphEdgeData *data, size_t count),
               {
                 if (has_edge_data(data, count)) return CUDA_ERROR_INVALID_VALUE;
                 return change_edges(graph, from, to, count, false);
               })
#else
HOSTCUDA_NOT_PROVIDED(cuGraphGetEdges_v2, 12030)
HOSTCUDA_NOT_PROVIDED(cuGraphNodeGetDependencies_v2, 12030)
HOSTCUDA_NOT_PROVIDED(cuGraphNodeGetDependentNodes_v2, 12030)
HOSTCUDA_NOT_PROVIDED(cuGraphAddDependencies_v2, 12030)
HOSTCUDA_NOT_PROVIDED(cuGraphRemoveDependencies_v2, 12030)
#endif
