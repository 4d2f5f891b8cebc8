#include "preload/service/memory/captures.h"

#include <algorithm>
#include <new>
#include <vector>

#include "preload/service/serve.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {

constinit std::atomic<int> captures::count_{0};

namespace {

struct capture {
  word stream;
  word context;  // of the stream
};

struct capture_list {
  stillmap::mutex mutex;
  // The default stream of each thread has the same handle.
  std::vector<capture> all STILLMAP_GUARDED_BY(mutex);
  std::size_t beginning STILLMAP_GUARDED_BY(mutex) = 0;  // with room, and not yet in `all`
};

capture_list &list() noexcept {
  static undying<capture_list> captures;
  return *captures;
}

template <function query>
bool is_capturing(word stream) noexcept {
  number status = 0;
  return pass_on<query>(stream, reinterpret_cast<word>(&status)) == code::success && status != 0;
}

template <function context_of, function f, class... Arguments>
driver_code begin(word stream, Arguments... arguments) noexcept {
  word context = 0;
  if (pass_on<context_of>(stream, reinterpret_cast<word>(&context)) != code::success) context = 0;
  if (!captures::make_room()) return code::out_of_memory;
  const driver_code result = pass_on<f>(stream, arguments...);
  result == code::success ? captures::begin(stream, context) : captures::leave_room();
  return result;
}

// A call that fails may have ended the capture or not: one of another thread has not.
template <function query, function f, class... Arguments>
driver_code end(word stream, Arguments... arguments) noexcept {
  const driver_code result = pass_on<f>(stream, arguments...);
  if (captures::under_way() && !is_capturing<query>(stream)) captures::end_stream(stream);
  return result;
}

}  // namespace

bool captures::make_room() noexcept {
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  try {
    l.all.reserve(l.all.size() + l.beginning + 1);
  } catch (const std::bad_alloc &) {
    return false;
  }
  ++l.beginning;
  return true;
}

void captures::leave_room() noexcept {
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  --l.beginning;
}

void captures::begin(word stream, word context) noexcept {
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  --l.beginning;
  l.all.push_back({stream, context});
  count_.store(static_cast<int>(l.all.size()), std::memory_order_relaxed);
}

void captures::end_stream(word stream) noexcept {
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  const auto found = std::find_if(l.all.begin(), l.all.end(),
                                  [&](const capture &c) { return c.stream == stream; });
  if (found != l.all.end()) l.all.erase(found);
  count_.store(static_cast<int>(l.all.size()), std::memory_order_relaxed);
}

void captures::end_context(word context) noexcept {
  if (context == 0 || !under_way()) return;
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  std::erase_if(l.all, [&](const capture &c) { return c.context == context; });
  count_.store(static_cast<int>(l.all.size()), std::memory_order_relaxed);
}

bool captures::is_capturing(word stream) noexcept {
  return under_way() && preload::is_capturing<function::cuStreamIsCapturing>(stream);
}

driver_code serve(numbered<function::cuStreamBeginCapture>, word stream) noexcept {
  return begin<function::cuStreamGetCtx, function::cuStreamBeginCapture>(stream);
}
driver_code serve(numbered<function::cuStreamBeginCapture_ptsz>, word stream) noexcept {
  return begin<function::cuStreamGetCtx_ptsz, function::cuStreamBeginCapture_ptsz>(stream);
}
driver_code serve(numbered<function::cuStreamBeginCapture_v2>, word stream, number mode) noexcept {
  return begin<function::cuStreamGetCtx, function::cuStreamBeginCapture_v2>(stream, mode);
}
driver_code serve(numbered<function::cuStreamBeginCapture_v2_ptsz>, word stream,
                  number mode) noexcept {
  return begin<function::cuStreamGetCtx_ptsz, function::cuStreamBeginCapture_v2_ptsz>(stream, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToGraph>, word stream, word graph,
                  word nodes, word edges, word count, number mode) noexcept {
  return begin<function::cuStreamGetCtx, function::cuStreamBeginCaptureToGraph>(
      stream, graph, nodes, edges, count, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToGraph_ptsz>, word stream, word graph,
                  word nodes, word edges, word count, number mode) noexcept {
  return begin<function::cuStreamGetCtx_ptsz, function::cuStreamBeginCaptureToGraph_ptsz>(
      stream, graph, nodes, edges, count, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToCig>, word stream,
                  word parameters) noexcept {
  return begin<function::cuStreamGetCtx, function::cuStreamBeginCaptureToCig>(stream, parameters);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToCig_ptsz>, word stream,
                  word parameters) noexcept {
  return begin<function::cuStreamGetCtx_ptsz, function::cuStreamBeginCaptureToCig_ptsz>(stream,
                                                                                        parameters);
}
driver_code serve(numbered<function::cuStreamBeginRecaptureToGraph>, word stream, number mode,
                  word graph, word callback, word data) noexcept {
  return begin<function::cuStreamGetCtx, function::cuStreamBeginRecaptureToGraph>(
      stream, mode, graph, callback, data);
}
driver_code serve(numbered<function::cuStreamBeginRecaptureToGraph_ptsz>, word stream, number mode,
                  word graph, word callback, word data) noexcept {
  return begin<function::cuStreamGetCtx_ptsz, function::cuStreamBeginRecaptureToGraph_ptsz>(
      stream, mode, graph, callback, data);
}
driver_code serve(numbered<function::cuStreamEndCapture>, word stream, word graph) noexcept {
  return end<function::cuStreamIsCapturing, function::cuStreamEndCapture>(stream, graph);
}
driver_code serve(numbered<function::cuStreamEndCapture_ptsz>, word stream, word graph) noexcept {
  return end<function::cuStreamIsCapturing_ptsz, function::cuStreamEndCapture_ptsz>(stream, graph);
}

driver_code serve(numbered<function::cuStreamEndCaptureToCig>, word stream) noexcept {
  return end<function::cuStreamIsCapturing, function::cuStreamEndCaptureToCig>(stream);
}
driver_code serve(numbered<function::cuStreamEndCaptureToCig_ptsz>, word stream) noexcept {
  return end<function::cuStreamIsCapturing_ptsz, function::cuStreamEndCaptureToCig_ptsz>(stream);
}

}  // namespace stillmap::preload
