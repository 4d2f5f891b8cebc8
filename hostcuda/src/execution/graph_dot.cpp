// cuGraphDebugDotPrint: a graph as a DOT file.
#include <cstdio>
#include <memory>
#include <string>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/graph.h"

namespace hostcuda {
namespace {

const char *dot_name(CUgraphNodeType type) {
  static constexpr const char *names[] = {
      "KERNEL",       "MEMCPY",       "MEMSET",           "HOST",           "GRAPH",     "EMPTY",
      "WAIT_EVENT",   "EVENT_RECORD", "EXT_SEMAS_SIGNAL", "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE",
      "BATCH_MEM_OP", "CONDITIONAL"};
  const auto i = static_cast<std::size_t>(type);
  return i < std::size(names) ? names[i] : "UNKNOWN";
}

// A node is named by its graph and its place there, so that the file of a graph is reproducible.
std::string dot_id(const graph_node &n, const std::string &path) {
  return "\"graph_" + path + "_node_" + std::to_string(n.index) + "\"";
}

void write_graph(const graph &g, const std::string &path, std::string *out) {
  *out += "subgraph \"cluster_" + path + "\" {\nlabel=\"graph_" + path + "\"\n";
  for (const auto &n : g.nodes) {
    *out += dot_id(*n, path) + " [shape=\"box\" label=\"" + std::to_string(n->index) + "\\n" +
            dot_name(n->op.type) + "\"];\n";
  }
  for (const auto &n : g.nodes) {
    for (const graph_node *before : n->after)
      *out += dot_id(*before, path) + " -> " + dot_id(*n, path) + ";\n";
    if (const graph *const child = n->child())
      write_graph(*child, path + "_" + std::to_string(n->index), out);
  }
  *out += "}\n";
}

CUresult print_dot(CUgraph handle, const char *path) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text = "digraph dot {\n";
  {
    engine_lock lock(the_engine().mu);
    const auto g = find_graph(handle);
    if (!g) return CUDA_ERROR_INVALID_VALUE;
    write_graph(*g, "1", &text);
  }
  text += "}\n";
  const std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(std::fopen(path, "we"), std::fclose);
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  return written && std::fflush(file.get()) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuGraphDebugDotPrint, 11030, plain, 0,
               (CUgraph graph, const char *path, unsigned flags), {
                 (void)flags;  // what to add for each node
                 return print_dot(graph, path);
               })
