#include "preload/memory/captures.h"

#include <atomic>

#include "preload/functions/serve.h"

namespace stillmap::preload {
namespace {

constinit std::atomic<int> capturing_streams{0};

template <function f, class... Arguments>
driver_code begin(Arguments... arguments) noexcept {
  const driver_code result = pass_on<f>(arguments...);
  if (result == code::success) capturing_streams.fetch_add(1, std::memory_order_relaxed);
  return result;
}

// Whatever the call returns, a stream that captured does so no more.
template <function query, function f, class... Arguments>
driver_code end(word stream, Arguments... arguments) noexcept {
  number status = 0;
  const bool captures =
      pass_on<query>(stream, reinterpret_cast<word>(&status)) == code::success && status != 0;
  const driver_code result = pass_on<f>(stream, arguments...);
  if (captures) capturing_streams.fetch_sub(1, std::memory_order_relaxed);
  return result;
}

}  // namespace

bool captures::under_way() noexcept {
  return capturing_streams.load(std::memory_order_relaxed) > 0;
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
