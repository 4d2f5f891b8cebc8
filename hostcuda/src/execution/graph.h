// Graphs and executable graphs. A stream capture and cuGraphAdd*Node make the same nodes: an
// operation with the parameters that it was made from. hostcuda/docs/streams.md#graphs
//
// Guarded by engine::mu.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/node_params.h"
#include "hostcuda/src/execution/user_object.h"

namespace hostcuda {

struct graph_node {
  operation op;  // without a body: an empty node, or one with a child graph
  graph *owner = nullptr;
  std::vector<graph_node *> after;  // of the same graph
  std::size_t index = 0;            // in its graph
  std::uint64_t id = 0;
  std::uint64_t copy_of = 0;  // id of the node that it is a copy of, in a clone or executable graph
  bool enabled = true;        // executable graphs
  std::map<int, CUlaunchAttributeValue> attributes;  // kernel nodes

  graph *child() const;  // the graph of a child graph node, or nullptr
  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
};

struct graph {
  CUgraph handle = nullptr;  // nullptr: the copy in an executable graph
  std::uint64_t copy_of = 0;
  std::uint64_t id = 0;
  bool embedded = false;   // in a child graph node, which owns it
  bool capturing = false;  // a stream captures into it; the program cannot use it as a whole yet
  std::vector<std::unique_ptr<graph_node>> nodes;
  std::map<CUuserObject, object_references> objects;
  std::weak_ptr<graph_exec> instance;  // of a graph with memory nodes
};

// What a launch runs: the nodes of the graph and of its child graphs. Immutable after creation, so
// that pending launches can share it.
struct graph_plan {
  std::vector<operation> ops;
  std::vector<std::vector<std::size_t>> successors;
  std::vector<std::size_t> indegree;
  std::vector<touch> touches;                            // of all nodes
  std::vector<CUevent> waits;                            // events of wait nodes
  std::vector<std::pair<std::size_t, CUevent>> records;  // index and event of record nodes
  std::vector<CUdeviceptr> allocates;
  std::vector<CUdeviceptr> frees;
  std::vector<object_references> objects;
};

struct graph_exec {
  unsigned long long flags = 0;
  std::shared_ptr<graph> body;
  std::shared_ptr<const graph_plan> plan;
};

// ---- All functions require engine::mu.

// nullptr for an unknown or dead handle. A graph into which a stream captures is found.
std::shared_ptr<graph> find_graph(CUgraph handle);
graph_node *find_node(CUgraphNode handle);
std::shared_ptr<graph_exec> find_exec(CUgraphExec handle);

std::shared_ptr<graph> make_graph();
// Appends a node. The graph of a child graph node gets a handle.
graph_node *append_node(graph &g, operation &&op, std::vector<graph_node *> after);
// Gives the nodes of a graph that is not in `engine::graphs` yet, and its child graphs, their
// handles; or removes them, because the graph is destroyed.
void publish_nodes(graph &g);
void forget_nodes(graph &g);

// Copies the nodes, edges and references to user objects. `published`: the copy has handles.
std::shared_ptr<graph> copy_graph(const graph &from, bool published);
bool has_memory_nodes(const graph &g);
// After an update the nodes of an executable graph are still found by the graph that it was made of.
void keep_origins(const graph &old, graph *now);
// The node of `g` or of its child graphs that is a copy of node `id`, or nullptr.
graph_node *find_copy(graph &g, std::uint64_t id);

// Returns nullptr if the dependencies of the graph or a child graph have a cycle, and sets *bad to a
// node of it.
std::shared_ptr<const graph_plan> make_plan(const graph &g, const graph_node **bad);

// Compares the structure of an executable graph with that of `to`, for an update.
struct graph_difference {
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  graph_node *node = nullptr;  // of `to`
  graph_node *from = nullptr;  // an edge that differs leads from here to `node`
};
graph_difference compare_graphs(const graph &body, const graph &to);
// Whether the parameters of a node of an executable graph may change to those of `to`.
CUgraphExecUpdateResult compare_nodes(const graph_node &old, const operation &to);

}  // namespace hostcuda
