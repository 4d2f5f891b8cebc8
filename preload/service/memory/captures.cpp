#include "preload/service/memory/captures.h"

#include <list>
#include <new>

#include "preload/service/serve.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {

constinit std::atomic<int> captures::count_{0};

namespace {

struct capture {
  // The driver's: two threads' default streams have one handle, and one of them has two.
  word id = 0;
  word context = 0;  // of the stream
  bool marked = false;
};
// Nodes are made and freed without the lock: the program's operator new may capture.
using nodes = std::list<capture>;

struct capture_list {
  stillmap::mutex mutex;
  nodes all STILLMAP_GUARDED_BY(mutex);
};

capture_list &list() noexcept {
  static undying<capture_list> captures;
  return *captures;
}

std::atomic<bool> in_child{false};

// Takes those out for which which(capture) is true.
template <class Which>
void end(Which which) noexcept {
  if (in_child.load(std::memory_order_relaxed)) return;
  nodes gone;
  {
    capture_list &l = list();
    const lock_guard lock(l.mutex);
    for (auto c = l.all.begin(); c != l.all.end();) {
      const auto one = c++;
      if (which(*one)) gone.splice(gone.end(), l.all, one);
    }
  }
  captures::counter().fetch_sub(static_cast<int>(gone.size()), std::memory_order_relaxed);
}

template <class Change>
void change_each(Change change) noexcept {
  if (in_child.load(std::memory_order_relaxed)) return;
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  for (capture &c : l.all) change(c);
}

// The driver's number of the capture; 0: the stream captures nothing.
template <function info>
word id_of(word stream) noexcept {
  number status = 0;
  word id = 0;
  const driver_code asked = pass_on<info>(stream, reinterpret_cast<word>(&status),
                                          reinterpret_cast<word>(&id), word{0}, word{0}, word{0});
  return asked == code::success && status != 0 ? id : 0;
}

template <function info, function context_of, function f, class... Arguments>
driver_code begin(word stream, Arguments... arguments) noexcept {
  nodes made;
  try {
    made.emplace_back();
  } catch (const std::bad_alloc &) {
    return code::out_of_memory;
  }
  pass_on<context_of>(stream, reinterpret_cast<word>(&made.front().context));
  captures::counter().fetch_add(1, std::memory_order_relaxed);
  const driver_code result = pass_on<f>(stream, arguments...);
  made.front().id = result == code::success ? id_of<info>(stream) : 0;
  if (made.front().id == 0 || in_child.load(std::memory_order_relaxed)) {
    captures::counter().fetch_sub(1, std::memory_order_relaxed);
    return result;
  }
  capture_list &l = list();
  const lock_guard lock(l.mutex);
  l.all.splice(l.all.end(), made);
  return result;
}

// A call that fails may have ended the capture or not: one of another thread has not.
template <function info, function f, class... Arguments>
driver_code finish(word stream, Arguments... arguments) noexcept {
  const word id = captures::under_way() ? id_of<info>(stream) : 0;
  const driver_code result = pass_on<f>(stream, arguments...);
  if (id != 0 && id_of<info>(stream) != id) end([&](const capture &c) { return c.id == id; });
  return result;
}

}  // namespace

void captures::mark(word context) noexcept {
  if (context == 0 || !under_way()) return;
  change_each([&](capture &c) { c.marked = c.marked || c.context == context; });
}

void captures::unmark(word context) noexcept {
  if (context == 0 || !under_way()) return;
  change_each([&](capture &c) { c.marked = c.marked && c.context != context; });
}

void captures::end_marked(word context) noexcept {
  if (context == 0 || !under_way()) return;
  end([&](const capture &c) { return c.marked && c.context == context; });
}

template <function f>
driver_code captures::destroy(word stream) noexcept {
  const word id = under_way() ? id_of<function::cuStreamGetCaptureInfo_v2>(stream) : 0;
  const driver_code result = pass_on<f>(stream);
  if (result == code::success && id != 0) end([&](const capture &c) { return c.id == id; });
  return result;
}
template driver_code captures::destroy<function::cuStreamDestroy>(word stream) noexcept;
template driver_code captures::destroy<function::cuStreamDestroy_v2>(word stream) noexcept;

void captures::leave_in_child() noexcept {
  in_child.store(true, std::memory_order_relaxed);
  count_.store(0, std::memory_order_relaxed);
}

driver_code serve(numbered<function::cuStreamBeginCapture>, word stream) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2, function::cuStreamGetCtx,
               function::cuStreamBeginCapture>(stream);
}
driver_code serve(numbered<function::cuStreamBeginCapture_v2>, word stream, number mode) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2, function::cuStreamGetCtx,
               function::cuStreamBeginCapture_v2>(stream, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToGraph>, word stream, word graph,
                  word nodes, word edges, word count, number mode) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2, function::cuStreamGetCtx,
               function::cuStreamBeginCaptureToGraph>(stream, graph, nodes, edges, count, mode);
}
driver_code serve(numbered<function::cuStreamBeginRecaptureToGraph>, word stream, number mode,
                  word graph, word callback, word data) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2, function::cuStreamGetCtx,
               function::cuStreamBeginRecaptureToGraph>(stream, mode, graph, callback, data);
}
driver_code serve(numbered<function::cuStreamEndCapture>, word stream, word graph) noexcept {
  return finish<function::cuStreamGetCaptureInfo_v2, function::cuStreamEndCapture>(stream, graph);
}
driver_code serve(numbered<function::cuStreamBeginCapture_ptsz>, word stream) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2_ptsz, function::cuStreamGetCtx_ptsz,
               function::cuStreamBeginCapture_ptsz>(stream);
}
driver_code serve(numbered<function::cuStreamBeginCapture_v2_ptsz>, word stream,
                  number mode) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2_ptsz, function::cuStreamGetCtx_ptsz,
               function::cuStreamBeginCapture_v2_ptsz>(stream, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToGraph_ptsz>, word stream, word graph,
                  word nodes, word edges, word count, number mode) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2_ptsz, function::cuStreamGetCtx_ptsz,
               function::cuStreamBeginCaptureToGraph_ptsz>(stream, graph, nodes, edges, count,
                                                           mode);
}
driver_code serve(numbered<function::cuStreamBeginRecaptureToGraph_ptsz>, word stream, number mode,
                  word graph, word callback, word data) noexcept {
  return begin<function::cuStreamGetCaptureInfo_v2_ptsz, function::cuStreamGetCtx_ptsz,
               function::cuStreamBeginRecaptureToGraph_ptsz>(stream, mode, graph, callback, data);
}
driver_code serve(numbered<function::cuStreamEndCapture_ptsz>, word stream, word graph) noexcept {
  return finish<function::cuStreamGetCaptureInfo_v2_ptsz, function::cuStreamEndCapture_ptsz>(stream,
                                                                                             graph);
}

}  // namespace stillmap::preload
