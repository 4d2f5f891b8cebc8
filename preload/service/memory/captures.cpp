#include "preload/service/memory/captures.h"

#include "preload/service/serve.h"

namespace stillmap::preload {

constinit std::atomic<int> captures::streams_{0};

namespace {

template <function f, class... Arguments>
driver_code begin(Arguments... arguments) noexcept {
  const driver_code result = pass_on<f>(arguments...);
  if (result == code::success) captures::note_begun();
  return result;
}

template <function query>
bool is_capturing(word stream) noexcept {
  number status = 0;
  return pass_on<query>(stream, reinterpret_cast<word>(&status)) == code::success && status != 0;
}

// A call that fails may have ended the capture or not: one of another thread has not.
template <function query, function f, class... Arguments>
driver_code end(word stream, Arguments... arguments) noexcept {
  const bool captured = is_capturing<query>(stream);
  const driver_code result = pass_on<f>(stream, arguments...);
  if (captured && !is_capturing<query>(stream)) captures::note_ended();
  return result;
}

}  // namespace

bool captures::is_capturing(word stream) noexcept {
  return under_way() && preload::is_capturing<function::cuStreamIsCapturing>(stream);
}

driver_code serve(numbered<function::cuStreamBeginCapture>, word stream) noexcept {
  return begin<function::cuStreamBeginCapture>(stream);
}
driver_code serve(numbered<function::cuStreamBeginCapture_ptsz>, word stream) noexcept {
  return begin<function::cuStreamBeginCapture_ptsz>(stream);
}
driver_code serve(numbered<function::cuStreamBeginCapture_v2>, word stream, number mode) noexcept {
  return begin<function::cuStreamBeginCapture_v2>(stream, mode);
}
driver_code serve(numbered<function::cuStreamBeginCapture_v2_ptsz>, word stream,
                  number mode) noexcept {
  return begin<function::cuStreamBeginCapture_v2_ptsz>(stream, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToGraph>, word stream, word graph,
                  word nodes, word edges, word count, number mode) noexcept {
  return begin<function::cuStreamBeginCaptureToGraph>(stream, graph, nodes, edges, count, mode);
}
driver_code serve(numbered<function::cuStreamBeginCaptureToGraph_ptsz>, word stream, word graph,
                  word nodes, word edges, word count, number mode) noexcept {
  return begin<function::cuStreamBeginCaptureToGraph_ptsz>(stream, graph, nodes, edges, count,
                                                           mode);
}
driver_code serve(numbered<function::cuStreamEndCapture>, word stream, word graph) noexcept {
  return end<function::cuStreamIsCapturing, function::cuStreamEndCapture>(stream, graph);
}
driver_code serve(numbered<function::cuStreamEndCapture_ptsz>, word stream, word graph) noexcept {
  return end<function::cuStreamIsCapturing_ptsz, function::cuStreamEndCapture_ptsz>(stream, graph);
}

}  // namespace stillmap::preload
