#include "hostcuda/src/execution/capture.h"

#include <algorithm>
#include <unordered_set>

#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/entry/entry.h"

namespace hostcuda {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void forget(capture &cap) {
  std::erase_if(the_engine().captures, [&](const auto &c) { return c.get() == &cap; });
}

// Whether each captured operation is in the origin's tail or an ancestor of it.
bool all_joined(const capture &cap, const stream &origin) {
  std::unordered_set<const graph_node *> reached;
  std::vector<const graph_node *> open(origin.tail.begin(), origin.tail.end());
  while (!open.empty()) {
    const graph_node *n = open.back();
    open.pop_back();
    if (!reached.insert(n).second) continue;
    open.insert(open.end(), n->after.begin(), n->after.end());
  }
  return reached.size() == cap.into->nodes.size();
}

CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = call.s;
  if (s->is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->cap) return CUDA_ERROR_ILLEGAL_STATE;
  auto cap = std::make_shared<capture>();
  cap->id = the_engine().next_id++;
  cap->mode = mode;
  cap->owner = std::this_thread::get_id();
  cap->origin = s;
  cap->joined.push_back(s);
  cap->into = make_graph();
  cap->into->capturing = true;
  the_engine().graphs[cap->into->handle] = cap->into;
  s->cap = cap;
  s->tail.clear();
  the_engine().captures.push_back(std::move(cap));
  return CUDA_SUCCESS;
}

CUresult end_capture(CUstream handle, CUgraph *out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = call.s;
  const auto cap = s->cap;
  if (!cap) return CUDA_ERROR_ILLEGAL_STATE;
  *out = nullptr;
  if (cap->origin.lock() != s) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (cap->mode != CU_STREAM_CAPTURE_MODE_RELAXED && cap->owner != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool joined = all_joined(*cap, *s);
  drop_capture(*cap);
  if (cap->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  cap->into->capturing = false;
  the_engine().graphs[cap->into->handle] = cap->into;
  publish_nodes(*cap->into);
  *out = cap->into->handle;
  return CUDA_SUCCESS;
}

struct capture_info {
  CUstreamCaptureStatus *status;
  cuuint64_t *id = nullptr;
  CUgraph *graph = nullptr;
  const CUgraphNode **dependencies = nullptr;
  size_t *dependency_count = nullptr;
};

CUresult get_capture_info(CUstream handle, const capture_info &out) {
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = *call.s;
  if (s.is_legacy) {
    for (const auto &other : s.exec->streams) {
      if (other->blocking() && other->cap) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  if (!s.cap || s.cap->invalidated) {
    *out.status = s.cap ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  *out.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (out.id != nullptr) *out.id = s.cap->id;
  if (out.graph != nullptr) *out.graph = s.cap->into->handle;
  // The handle of a node is its address, so the array of node pointers is the result.
  if (out.dependencies != nullptr) {
    *out.dependencies = reinterpret_cast<const CUgraphNode *>(s.tail.data());
  }
  if (out.dependency_count != nullptr) *out.dependency_count = s.tail.size();
  return CUDA_SUCCESS;
}

// Adds to or replaces the dependencies of the next captured operation.
CUresult update_dependencies(CUstream handle, const CUgraphNode *nodes, size_t count,
                             unsigned flags) {
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && nodes == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  stream_call call(handle);
  if (!call.s) return call.error();
  auto &s = *call.s;
  if (!s.cap) return CUDA_ERROR_ILLEGAL_STATE;
  if (s.cap->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto tail = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? std::vector<graph_node *>{} : s.tail;
  for (size_t i = 0; i < count; ++i) {
    graph_node *const n = find_node(nodes[i]);
    if (n == nullptr || n->owner != s.cap->into.get()) return CUDA_ERROR_INVALID_VALUE;
    if (std::find(tail.begin(), tail.end(), n) == tail.end()) tail.push_back(n);
  }
  s.tail = std::move(tail);
  return CUDA_SUCCESS;
}

}  // namespace

void drop_capture(capture &cap) {
  the_engine().graphs.erase(cap.into->handle);
  forget_nodes(*cap.into);
  const auto joined = cap.joined;
  for (const auto &weak : joined) {
    const auto s = weak.lock();
    if (!s || s->cap.get() != &cap) continue;
    s->tail.clear();
    const auto keep = std::move(s->cap);
    s->cap.reset();
    forget(*keep);
  }
}

void leave_capture(const std::shared_ptr<stream> &s) {
  if (s->cap->origin.lock() == s) {
    drop_capture(*s->cap);
    return;
  }
  s->cap.reset();
  s->tail.clear();
}

bool invalidate_blocking(const execution &exec) {
  bool any = false;
  for (const auto &s : exec.streams) {
    if (!s->blocking() || !s->cap) continue;
    s->cap->invalidated = true;
    any = true;
  }
  return any;
}

void record_in_capture(stream &s, operation &&op) {
  s.tail.assign(1, append_node(*s.cap->into, std::move(op), s.tail));
}

CUresult join_capture(const std::shared_ptr<stream> &s, const std::shared_ptr<capture> &cap,
                      const std::vector<graph_node *> &tail) {
  const auto &live = the_engine().captures;
  if (std::find(live.begin(), live.end(), cap) == live.end()) return CUDA_ERROR_CAPTURED_EVENT;
  if (cap->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (s->is_legacy) {
    cap->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (s->cap && s->cap != cap) {
    s->cap->invalidated = true;
    cap->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (!s->cap) {
    s->cap = cap;
    s->tail.clear();
    cap->joined.push_back(s);
  }
  for (graph_node *n : tail) {
    if (std::find(s->tail.begin(), s->tail.end(), n) == s->tail.end()) s->tail.push_back(n);
  }
  return CUDA_SUCCESS;
}

bool capture_forbids_unsafe_call() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  engine_lock lock(the_engine().mu);
  return capture_forbids_unsafe_call_locked();
}

bool capture_forbids_unsafe_call_locked() {
  if (the_engine().captures.empty() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  const auto here = std::this_thread::get_id();
  bool forbidden = false;
  for (const auto &cap : the_engine().captures) {
    const bool mine = cap->owner == here && cap->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool anybody =
        cap->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !anybody) continue;
    cap->invalidated = true;
    forbidden = true;
  }
  return forbidden;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_STREAM_ENTRY(cuStreamBeginCapture_v2, 10010, plain, 0, stream,
                      (CUstream stream, CUstreamCaptureMode mode), (stream, mode),
                      { return begin_capture(stream, mode); })

HOSTCUDA_STREAM_ENTRY(cuStreamEndCapture, 10000, plain, 0, stream, (CUstream stream, CUgraph *out),
                      (stream, out), { return end_capture(stream, out); })

HOSTCUDA_STREAM_ENTRY(cuStreamIsCapturing, 10000, plain, 0, stream,
                      (CUstream stream, CUstreamCaptureStatus *out), (stream, out),
                      { return get_capture_info(stream, {out}); })

HOSTCUDA_STREAM_ENTRY(cuStreamGetCaptureInfo_v2, 11030, plain, 0, stream,
                      (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                       CUgraph *graph, const CUgraphNode **dependencies, size_t *count),
                      (stream, status, id, graph, dependencies, count), {
                        return get_capture_info(stream, {status, id, graph, dependencies, count});
                      })

#if CUDA_VERSION >= 12030
HOSTCUDA_STREAM_ENTRY(cuStreamGetCaptureInfo_v3, 12030, plain, 0, stream,
                      (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                       CUgraph *graph, const CUgraphNode **dependencies,
                       const CUgraphEdgeData **edges, size_t *count),
                      (stream, status, id, graph, dependencies, edges, count), {
                        if (edges != nullptr) *edges = nullptr;  // edges have no data
                        return get_capture_info(stream, {status, id, graph, dependencies, count});
                      })
#else
HOSTCUDA_NOT_PROVIDED(cuStreamGetCaptureInfo_v3, 12030)
HOSTCUDA_NOT_PROVIDED(cuStreamGetCaptureInfo_v3_ptsz, 12030)
#endif

HOSTCUDA_STREAM_ENTRY(cuStreamUpdateCaptureDependencies, 11030, plain, 0, stream,
                      (CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags),
                      (stream, nodes, count, flags),
                      { return update_dependencies(stream, nodes, count, flags); })

#if CUDA_VERSION >= 12030
HOSTCUDA_STREAM_ENTRY(cuStreamUpdateCaptureDependencies_v2, 12030, plain, 0, stream,
                      (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                       size_t count, unsigned flags),
                      (stream, nodes, edges, count, flags), {
                        (void)edges;  // edges have no data
                        return update_dependencies(stream, nodes, count, flags);
                      })
#else
HOSTCUDA_NOT_PROVIDED(cuStreamUpdateCaptureDependencies_v2, 12030)
HOSTCUDA_NOT_PROVIDED(cuStreamUpdateCaptureDependencies_v2_ptsz, 12030)
#endif

HOSTCUDA_ENTRY(cuThreadExchangeStreamCaptureMode, 10010, plain, 0, (CUstreamCaptureMode * mode), {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
})
