// Calls without a size: queries, events, streams.
#include <iterator>

#include "bench/costs/parts.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {
namespace {

struct subject {
  const driver &drv;
  context_handle context;
  own_stream stream;
  own_event event;
  piece memory;  // empty without VMM
  stream_handle new_stream = nullptr;
  event_handle new_event = nullptr;
};

template <class T>
status keep_handle(const result<T> &made, T &into) {
  if (made) into = *made;
  return outcome(made);
}

struct small_call {
  const char *name;
  status (*act)(subject &);
  const char *undone_by = nullptr;  // the call that undoes it, timed too
  status (*undo)(subject &) = nullptr;
};

const small_call calls_with_vmm[] = {
    {"cuMemGetAllocationGranularity",
     [](subject &s) { return outcome(s.drv.granularity({on_device(0)}, false)); }},
    {"cuMemGetAllocationPropertiesFromHandle",
     [](subject &s) { return outcome(s.drv.properties(s.memory.pages.get())); }},
};

const small_call calls[] = {
    {"cuMemGetInfo", [](subject &s) { return outcome(s.drv.memory_info_now()); }},
    {"cuCtxGetCurrent", [](subject &s) { return outcome(s.drv.current_context()); }},
    {"cuCtxPushCurrent", [](subject &s) { return s.drv.push_context(s.context); },
     "cuCtxPopCurrent", [](subject &s) { return s.drv.pop_context(); }},
    {"cuCtxSynchronize", [](subject &s) { return s.drv.synchronize_context(); }},
    {"cuStreamCreate",
     [](subject &s) { return keep_handle(s.drv.create_stream(true), s.new_stream); },
     "cuStreamDestroy", [](subject &s) { return s.drv.destroy_stream(s.new_stream); }},
    {"cuStreamSynchronize", [](subject &s) { return s.drv.synchronize_stream(s.stream.get()); }},
    {"cuStreamQuery", [](subject &s) { return outcome(s.drv.stream_idle(s.stream.get())); }},
    {"cuStreamIsCapturing",
     [](subject &s) { return outcome(s.drv.stream_capturing(s.stream.get())); }},
    {"cuThreadExchangeStreamCaptureMode",
     [](subject &s) { return outcome(s.drv.exchange_capture_mode(capture_mode::global)); }},
    {"cuEventCreate", [](subject &s) { return keep_handle(s.drv.create_event(), s.new_event); },
     "cuEventDestroy", [](subject &s) { return s.drv.destroy_event(s.new_event); }},
    {"cuEventRecord", [](subject &s) { return s.drv.record_event(s.event.get(), s.stream.get()); }},
    {"cuEventQuery", [](subject &s) { return outcome(s.drv.event_done(s.event.get())); }},
    {"cuEventSynchronize", [](subject &s) { return s.drv.synchronize_event(s.event.get()); }},
    {"cuStreamWaitEvent",
     [](subject &s) { return s.drv.stream_wait(s.stream.get(), s.event.get()); }},
};

// The part of every time that reading the clock takes.
void time_the_clock(table &out) {
  call_times times;
  for (int i = 0; i < 1000; ++i) times.time("clock", [] { return true; });
  const double ns = times.of("clock").summary().median_ns;
  out.add_fact("clock.ns", ns,
               "every time has a look at the clock in it: " + microseconds(ns) + " µs");
}

}  // namespace

void measure_small(const machine &m, time_left left, bool, table &out) {
  time_the_clock(out);
  const driver &drv = m.driver();
  subject s{drv, m.context(), {}, {}, {}};
  std::vector<small_call> all(std::begin(calls), std::end(calls));
  const status ready = [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(s.stream, m.create_stream());
    STILLMAP_ASSIGN_OR_RETURN(const event_handle event, drv.create_event());
    s.event = own_event(drv, event);
    if (!m.vmm()) return {};
    STILLMAP_ASSIGN_OR_RETURN(s.memory, make_piece(m, m.page()));
    all.insert(all.begin(), std::begin(calls_with_vmm), std::end(calls_with_vmm));
    return {};
  }();
  if (!ready) return out.refused(ready.error(), against::nothing, 0);
  double to_do = static_cast<double>(all.size());
  for (const small_call &c : all) {
    call_times times;
    (void)sample(left.share(1 / to_do--), times, against::nothing, 0, out,
                 [&](call_times &into) -> status {
                   STILLMAP_RETURN_IF_ERROR(into.time(c.name, [&] { return c.act(s); }));
                   if (c.undo == nullptr) return {};
                   return into.time(c.undone_by, [&] { return c.undo(s); });
                 });
  }
}

}  // namespace stillmap::costs
