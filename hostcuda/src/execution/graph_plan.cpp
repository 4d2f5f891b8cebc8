// Plans of executable graphs: the nodes of a graph and its child graphs, in one list.
#include <set>
#include <tuple>
#include <utility>

#include "hostcuda/src/execution/graph.h"

namespace hostcuda {
namespace {

// The first and the last operation of a node. They differ for a child graph, which has an operation
// without a body before and after its nodes.
struct node_ends {
  std::size_t first;
  std::size_t last;
};

class planner {
 public:
  explicit planner(graph_plan *out) : plan_(*out) {}

  bool add(const graph &g, const graph_node **bad) {
    if (!is_acyclic(g, bad)) return false;
    std::vector<node_ends> ends;
    for (const auto &n : g.nodes) {
      const std::size_t first = add_op(n->enabled ? n->op : operation{"", {}, {}});
      std::size_t last = first;
      if (const graph *const child = n->child()) {
        const std::size_t from = plan_.ops.size();
        if (!add(*child, bad)) return false;
        const std::size_t to = plan_.ops.size();
        last = add_op(operation{"", {}, {}});
        for (std::size_t i = from; i < to; ++i) {
          if (plan_.indegree[i] == 0) connect(first, i);
          if (plan_.successors[i].empty()) connect(i, last);
        }
        if (from == to) connect(first, last);
      }
      ends.push_back({first, last});
    }
    for (const auto &n : g.nodes) {
      for (const graph_node *before : n->after)
        connect(ends[before->index].last, ends[n->index].first);
    }
    for (const auto &entry : g.objects) plan_.objects.push_back(entry.second);
    return true;
  }

 private:
  static bool is_acyclic(const graph &g, const graph_node **bad) {
    std::vector<std::size_t> open(g.nodes.size());
    std::vector<std::vector<std::size_t>> next(g.nodes.size());
    std::vector<std::size_t> ready;
    for (const auto &n : g.nodes) {
      open[n->index] = n->after.size();
      for (const graph_node *before : n->after) next[before->index].push_back(n->index);
      if (n->after.empty()) ready.push_back(n->index);
    }
    std::size_t done = 0;
    for (; done < ready.size(); ++done) {
      for (const std::size_t i : std::exchange(next[ready[done]], {})) {
        if (--open[i] == 0) ready.push_back(i);
      }
    }
    if (done == g.nodes.size()) return true;
    for (const auto &n : g.nodes) {
      if (open[n->index] != 0) *bad = n.get();
    }
    return false;
  }

  std::size_t add_op(const operation &op) {
    const std::size_t i = plan_.ops.size();
    plan_.ops.push_back(op);
    plan_.successors.emplace_back();
    plan_.indegree.push_back(0);
    for (const touch &t : op.touches) {
      if (seen_.emplace(t.at, t.bytes, t.write).second) plan_.touches.push_back(t);
    }
    if (!op.params) return i;
    if (const auto *const ev = std::get_if<event_params>(&op.params->of)) {
      if (op.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        plan_.waits.push_back(ev->event);
      } else {
        plan_.records.emplace_back(i, ev->event);
      }
    }
    if (const auto *const a = std::get_if<alloc_params>(&op.params->of))
      plan_.allocates.push_back(a->values.dptr);
    if (const auto *const f = std::get_if<free_params>(&op.params->of))
      plan_.frees.push_back(f->at);
    return i;
  }

  void connect(std::size_t from, std::size_t to) {
    plan_.successors[from].push_back(to);
    ++plan_.indegree[to];
  }

  graph_plan &plan_;
  std::set<std::tuple<CUdeviceptr, std::size_t, bool>> seen_;  // address, bytes, write
};

}  // namespace

std::shared_ptr<const graph_plan> make_plan(const graph &g, const graph_node **bad) {
  auto plan = std::make_shared<graph_plan>();
  return planner(plan.get()).add(g, bad) ? plan : nullptr;
}

}  // namespace hostcuda
