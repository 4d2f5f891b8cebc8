// Graphs (captured operations with their dependencies) and executable graphs.
#pragma once

#include <memory>
#include <vector>

#include "hostcuda/src/execution/engine.h"

namespace hostcuda {

struct graph_node {
  operation op;
  std::vector<graph_node *> after;
  std::size_t index = 0;  // in its graph; dependencies have smaller indices
};

struct graph {
  CUgraph handle = nullptr;
  context *ctx = nullptr;
  std::vector<std::unique_ptr<graph_node>> nodes;
};

// Immutable after creation, so that pending launches can share it.
struct graph_plan {
  std::vector<operation> ops;
  std::vector<std::vector<std::size_t>> successors;
  std::vector<std::size_t> indegree;
  std::vector<touch> touches;  // of all nodes
};

struct graph_exec {
  context *ctx = nullptr;
  unsigned long long flags = 0;
  std::shared_ptr<const graph_plan> plan;
};

}  // namespace hostcuda
