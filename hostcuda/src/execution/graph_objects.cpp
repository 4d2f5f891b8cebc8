// The references of graphs to user objects.
#include <utility>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/graph.h"

namespace hostcuda {
namespace {

CUresult graph_retains(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  if ((flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) return CUDA_ERROR_INVALID_VALUE;
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  object_references taken;
  const CUresult r = take_references(object, count, flags != 0, &taken);
  if (r != CUDA_SUCCESS) return r;
  if (const auto found = g->objects.find(object); found != g->objects.end()) {
    found->second.merge(std::move(taken));
  } else {
    g->objects.emplace(object, std::move(taken));
  }
  return CUDA_SUCCESS;
}

CUresult graph_releases(CUgraph graph, CUuserObject object, unsigned count) {
  object_references gone;  // released without the lock
  engine_lock lock(the_engine().mu);
  const auto g = find_graph(graph);
  if (!g || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = g->objects.find(object);
  if (found == g->objects.end() || found->second.count() < count) return CUDA_ERROR_INVALID_VALUE;
  gone = found->second.split(count);
  if (found->second.count() == 0) g->objects.erase(found);
  lock.unlock();
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuGraphRetainUserObject, 11030, plain, 0,
               (CUgraph graph, CUuserObject object, unsigned count, unsigned flags),
               { return graph_retains(graph, object, count, flags); })

HOSTCUDA_ENTRY(cuGraphReleaseUserObject, 11030, ignores_sticky, 0,
               (CUgraph graph, CUuserObject object, unsigned count),
               { return graph_releases(graph, object, count); })
