#include "hostcuda/src/execution/graph.h"

#include <algorithm>

namespace hostcuda {

graph *graph_node::child() const {
  const auto *const p = op.params ? std::get_if<child_params>(&op.params->of) : nullptr;
  return p != nullptr ? p->child.get() : nullptr;
}

std::shared_ptr<graph> find_graph(CUgraph handle) {
  const auto found = the_engine().graphs.find(handle);
  return found == the_engine().graphs.end() ? nullptr : found->second;
}

graph_node *find_node(CUgraphNode handle) {
  auto *const n = reinterpret_cast<graph_node *>(handle);
  return the_engine().graph_nodes.contains(n) ? n : nullptr;
}

std::shared_ptr<graph_exec> find_exec(CUgraphExec handle) {
  const auto found = the_engine().graph_execs.find(handle);
  return found == the_engine().graph_execs.end() ? nullptr : found->second;
}

std::shared_ptr<graph> make_graph() {
  auto g = std::make_shared<graph>();
  g->id = the_engine().next_id++;
  g->handle = new_handle<CUgraph>(3);
  return g;
}

namespace {

std::shared_ptr<graph> copy_nodes(const graph &from, bool published);

// An operation with a copy of its child graph, which belongs to one node.
void own_child(operation &op, bool published) {
  const auto *const p = op.params ? std::get_if<child_params>(&op.params->of) : nullptr;
  if (p == nullptr) return;
  auto child = copy_nodes(*p->child, published);
  child->embedded = true;
  op.params = share_params(child_params{std::move(child)});
}

std::shared_ptr<graph> copy_nodes(const graph &from, bool published) {
  auto g = make_graph();
  if (!published) g->handle = nullptr;
  g->copy_of = from.id;
  for (const auto &n : from.nodes) {
    auto copy = std::make_unique<graph_node>();
    copy->op = n->op;
    own_child(copy->op, published);
    copy->owner = g.get();
    copy->index = g->nodes.size();
    copy->id = the_engine().next_id++;
    copy->copy_of = n->id;
    copy->enabled = n->enabled;
    copy->attributes = n->attributes;
    g->nodes.push_back(std::move(copy));
  }
  for (const auto &n : from.nodes) {
    auto &after = g->nodes[n->index]->after;
    for (const graph_node *before : n->after) after.push_back(g->nodes[before->index].get());
  }
  g->objects = from.objects;
  return g;
}

}  // namespace

std::shared_ptr<graph> copy_graph(const graph &from, bool published) {
  auto g = copy_nodes(from, published);
  if (published) publish_nodes(*g);
  return g;
}

graph_node *append_node(graph &g, operation &&op, std::vector<graph_node *> after) {
  auto n = std::make_unique<graph_node>();
  n->op = std::move(op);
  n->op.waits = nullptr;  // of a launch that is captured
  n->op.queued = nullptr;
  own_child(n->op, true);
  if (n->child() != nullptr) {  // the plan of a launch has the nodes of the child graph
    n->op.body = nullptr;
    n->op.touches.clear();
  }
  n->owner = &g;
  n->after = std::move(after);
  n->index = g.nodes.size();
  n->id = the_engine().next_id++;
  graph_node *const out = n.get();
  g.nodes.push_back(std::move(n));
  the_engine().graph_nodes.insert(out);
  if (graph *const child = out->child()) {
    publish_nodes(*child);
    the_engine().graphs[child->handle] = std::get<child_params>(out->op.params->of).child;
  }
  return out;
}

void publish_nodes(graph &g) {
  for (const auto &n : g.nodes) {
    the_engine().graph_nodes.insert(n.get());
    graph *const child = n->child();
    if (child == nullptr) continue;
    publish_nodes(*child);
    the_engine().graphs[child->handle] = std::get<child_params>(n->op.params->of).child;
  }
}

void forget_nodes(graph &g) {
  for (const auto &n : g.nodes) {
    the_engine().graph_nodes.erase(n.get());
    graph *const child = n->child();
    if (child == nullptr) continue;
    forget_nodes(*child);
    the_engine().graphs.erase(child->handle);
  }
}

bool has_memory_nodes(const graph &g) {
  return std::any_of(g.nodes.begin(), g.nodes.end(), [](const auto &n) {
    const graph *const child = n->child();
    return n->op.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
           n->op.type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
           (child != nullptr && has_memory_nodes(*child));
  });
}

void keep_origins(const graph &old, graph *now) {
  for (std::size_t i = 0; i < now->nodes.size(); ++i) {
    now->nodes[i]->copy_of = old.nodes[i]->copy_of;
    if (graph *const child = now->nodes[i]->child()) keep_origins(*old.nodes[i]->child(), child);
  }
}

graph_node *find_copy(graph &g, std::uint64_t id) {
  for (const auto &n : g.nodes) {
    if (n->copy_of == id) return n.get();
    graph *const child = n->child();
    graph_node *const inner = child != nullptr ? find_copy(*child, id) : nullptr;
    if (inner != nullptr) return inner;
  }
  return nullptr;
}

namespace {

bool same_edges(const graph_node &a, const graph_node &b) {
  const auto precedes = [](const graph_node &n, std::size_t index) {
    return std::any_of(n.after.begin(), n.after.end(),
                       [&](const graph_node *x) { return x->index == index; });
  };
  return a.after.size() == b.after.size() &&
         std::all_of(b.after.begin(), b.after.end(),
                     [&](const graph_node *x) { return precedes(a, x->index); });
}

}  // namespace

CUgraphExecUpdateResult compare_nodes(const graph_node &old, const operation &to) {
  if (old.op.type != to.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  switch (to.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return std::get<kernel_params>(old.op.params->of).ctx ==
                     std::get<kernel_params>(to.params->of).ctx
                 ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                 : CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const auto &a = std::get<copy_params>(old.op.params->of);
      const auto &b = std::get<copy_params>(to.params->of);
      return a.values.srcMemoryType == b.values.srcMemoryType &&
                     a.values.dstMemoryType == b.values.dstMemoryType && a.ctx == b.ctx
                 ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                 : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto &a = std::get<fill_params>(old.op.params->of);
      const auto &b = std::get<fill_params>(to.params->of);
      const bool rows = (a.values.height > 1) != (b.values.height > 1);
      return a.ctx == b.ctx && !rows ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                     : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    default:
      return CU_GRAPH_EXEC_UPDATE_SUCCESS;
  }
}

graph_difference compare_graphs(const graph &body, const graph &to) {
  if (body.nodes.size() != to.nodes.size())
    return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr, nullptr};
  for (std::size_t i = 0; i < to.nodes.size(); ++i) {
    const graph_node &old = *body.nodes[i];
    graph_node &now = *to.nodes[i];
    if (!same_edges(old, now)) {
      return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, &now,
              now.after.empty() ? nullptr : now.after.front()};
    }
    const auto result = compare_nodes(old, now.op);
    if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return {result, &now, nullptr};
    if (old.child() == nullptr) continue;
    const auto inner = compare_graphs(*old.child(), *now.child());
    if (inner.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return inner;
  }
  return {};
}

}  // namespace hostcuda
