// Graphs: operations and what each depends on, as captured; and their instances.
#pragma once

#include <memory>
#include <vector>

#include "hostcuda/src/execution/engine.h"

namespace hostcuda {

struct graph_node {
  operation op;
  std::vector<graph_node *> after;
  std::size_t index = 0;  // in its graph; every dependency has a smaller one
};

struct graph {
  CUgraph handle = nullptr;
  context *ctx = nullptr;
  std::vector<std::unique_ptr<graph_node>> nodes;
};

// Immutable once made, so that launches in flight can share it.
struct graph_plan {
  std::vector<operation> ops;
  std::vector<std::vector<std::size_t>> successors;
  std::vector<std::size_t> indegree;
  std::vector<touch> touches;  // of all nodes together
};

struct graph_exec {
  context *ctx = nullptr;
  unsigned long long flags = 0;
  std::shared_ptr<const graph_plan> plan;
};

}  // namespace hostcuda
