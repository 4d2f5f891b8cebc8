// Which calls are legal while a stream captures, and which of them end the capture.
#include <cuda.h>

#include <thread>

#include "bench/costs/parts.h"
#include "bench/costs/stage.h"
#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/context.h"

namespace stillmap::costs {
namespace {

// The library never captures, so its driver interface has no calls for this.
struct capture_calls {
  CUresult (*begin)(CUstream, CUstreamCaptureMode) = nullptr;
  CUresult (*end)(CUstream, CUgraph *) = nullptr;
  CUresult (*destroy)(CUgraph) = nullptr;

  explicit capture_calls(const driver &drv) {
    begin = reinterpret_cast<decltype(begin)>(drv.symbol("cuStreamBeginCapture_v2"));
    end = reinterpret_cast<decltype(end)>(drv.symbol("cuStreamEndCapture"));
    destroy = reinterpret_cast<decltype(destroy)>(drv.symbol("cuGraphDestroy"));
  }
  explicit operator bool() const {
    return begin != nullptr && end != nullptr && destroy != nullptr;
  }
};

// The thread and mode that the call is made in.
enum class caller { here, here_relaxed, elsewhere };
constexpr const char *names[] = {"here", "here in relaxed mode", "another thread"};

status call_from(caller who, const machine &m, const staged_call &c, stage &s) {
  if (who == caller::here) return c.act(s);
  if (who == caller::here_relaxed) {
    const relaxed_capture_mode relaxed(m.driver());
    return relaxed.entered() ? c.act(s) : relaxed.entered();
  }
  status done;
  std::thread([&] {
    const context_guard guard(m.driver(), m.context());
    done = guard.entered() ? c.act(s) : guard.entered();
  }).join();
  return done;
}

struct answer {
  std::string code;  // of the call
  CUresult begun = CUDA_SUCCESS, ended = CUDA_SUCCESS;
  status prepared;
};

answer ask(const machine &m, const capture_calls &cu, const staged_call &c,
           CUstreamCaptureMode mode, caller who, stream_handle stream) {
  answer a;
  stage s(m);
  a.prepared = c.prepare(s);
  if (a.prepared) a.prepared = m.driver().synchronize_context();
  if (!a.prepared) return a;
  a.begun = cu.begin(stream, mode);
  if (a.begun != CUDA_SUCCESS) return a;
  const status done = call_from(who, m, c, s);
  CUgraph graph = nullptr;
  a.ended = cu.end(stream, &graph);
  if (graph != nullptr) (void)cu.destroy(graph);
  a.code = done ? "CUDA_SUCCESS" : name_of(done.error());
  return a;
}

const char *code_name(CUresult r) {
  return r == CUDA_SUCCESS ? "CUDA_SUCCESS" : describe_cuda_error(r).name;
}

}  // namespace

void measure_capture(const machine &m, time_left, bool, table &out) {
  const capture_calls cu(m.driver());
  if (!cu)
    return out.add_fact("capture", "missing", "this driver has no stream capture (CUDA 10.1)");
  const auto stream = m.create_stream();
  if (!stream) return out.add_fact("capture", name_of(stream.error()), stream.error().message());
  const struct {
    const char *name;
    CUstreamCaptureMode mode;
  } modes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
               {"thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
               {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};
  for (const auto &mode : modes) {
    for (const caller who : {caller::here, caller::here_relaxed, caller::elsewhere}) {
      for (const staged_call &c : staged_calls()) {
        if (c.vmm && !m.vmm()) continue;
        const char *const from = names[static_cast<int>(who)];
        const answer a = ask(m, cu, c, mode.mode, who, stream->get());
        const std::string name = std::string("capture.") + mode.name + "." + from + "." + c.name;
        if (!a.prepared) {
          out.add_fact(name, name_of(a.prepared.error()),
                       "not tried: " + a.prepared.error().message());
          if (a.prepared.error().is(errc::device_lost)) return;
          continue;
        }
        if (a.begun != CUDA_SUCCESS) {
          out.add_fact(name, code_name(a.begun), "no capture began");
          continue;
        }
        out.add_fact(name, a.code,
                     a.ended == CUDA_SUCCESS
                         ? "the capture survives"
                         : std::string("the capture is lost: ") + code_name(a.ended));
      }
    }
  }
}

}  // namespace stillmap::costs
