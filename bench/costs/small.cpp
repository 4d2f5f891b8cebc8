// Calls that know no size: questions, events, streams.
#include <iterator>

#include "bench/costs/parts.h"

namespace stillmap::costs {
namespace {

template <class T>
status outcome(const result<T> &r) {
  return r ? status{} : tl::unexpected<error>(r.error());
}

struct subject {
  const driver &drv;
  own_stream stream;
  own_event event;
  piece memory;  // nothing without VMM
};

// Where there are two calls the second undoes the first.
struct small_call {
  bool vmm;
  status (*act)(subject &, call_times &);
};

const small_call calls[] = {
    {true,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuMemGetAllocationGranularity",
                             [&] { return s.drv.granularity({on_device(0)}, false); }));
     }},
    {true,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuMemGetAllocationPropertiesFromHandle",
                             [&] { return s.drv.properties(s.memory.pages.get()); }));
     }},
    {false,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuMemGetInfo", [&] { return s.drv.memory_info_now(); }));
     }},
    {false,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuCtxGetCurrent", [&] { return s.drv.current_context(); }));
     }},
    {false,
     [](subject &s, call_times &t) -> status {
       const auto now = s.drv.current_context();
       if (!now) return outcome(now);
       const status in = t.time("cuCtxPushCurrent", [&] { return s.drv.push_context(*now); });
       return in ? t.time("cuCtxPopCurrent", [&] { return s.drv.pop_context(); }) : in;
     }},
    {false,
     [](subject &s, call_times &t) {
       return t.time("cuCtxSynchronize", [&] { return s.drv.synchronize_context(); });
     }},
    {false,
     [](subject &s, call_times &t) -> status {
       const auto made = t.time("cuStreamCreate", [&] { return s.drv.create_stream(true); });
       if (!made) return outcome(made);
       return t.time("cuStreamDestroy", [&] { return s.drv.destroy_stream(*made); });
     }},
    {false,
     [](subject &s, call_times &t) {
       return t.time("cuStreamSynchronize",
                     [&] { return s.drv.synchronize_stream(s.stream.get()); });
     }},
    {false,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuStreamQuery", [&] { return s.drv.stream_idle(s.stream.get()); }));
     }},
    {false,
     [](subject &s, call_times &t) {
       return outcome(
           t.time("cuStreamIsCapturing", [&] { return s.drv.stream_capturing(s.stream.get()); }));
     }},
    {false,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuThreadExchangeStreamCaptureMode",
                             [&] { return s.drv.exchange_capture_mode(capture_mode::global); }));
     }},
    {false,
     [](subject &s, call_times &t) -> status {
       const auto made = t.time("cuEventCreate", [&] { return s.drv.create_event(); });
       if (!made) return outcome(made);
       return t.time("cuEventDestroy", [&] { return s.drv.destroy_event(*made); });
     }},
    {false,
     [](subject &s, call_times &t) {
       return t.time("cuEventRecord",
                     [&] { return s.drv.record_event(s.event.get(), s.stream.get()); });
     }},
    {false,
     [](subject &s, call_times &t) {
       return outcome(t.time("cuEventQuery", [&] { return s.drv.event_done(s.event.get()); }));
     }},
    {false,
     [](subject &s, call_times &t) {
       return t.time("cuEventSynchronize", [&] { return s.drv.synchronize_event(s.event.get()); });
     }},
    {false,
     [](subject &s, call_times &t) {
       return t.time("cuStreamWaitEvent",
                     [&] { return s.drv.stream_wait(s.stream.get(), s.event.get()); });
     }},
};

// What of every time is the clock's own.
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
  subject s{drv, {}, {}, {}};
  const auto stream = drv.create_stream(true);
  if (!stream) return out.refused(stream.error(), against::nothing, 0);
  s.stream = own_stream(drv, *stream);
  const auto event = drv.create_event();
  if (!event) return out.refused(event.error(), against::nothing, 0);
  s.event = own_event(drv, *event);
  if (m.vmm()) {
    auto memory = make_piece(m, m.page());
    if (!memory) return out.refused(memory.error(), against::nothing, 0);
    s.memory = std::move(*memory);
  }
  double to_do = std::size(calls);
  for (const small_call &c : calls) {
    const time_left now = left.share(1 / to_do--);
    if (c.vmm && !s.memory.there) continue;
    call_times times, first;
    status done = c.act(s, first);
    for (std::size_t n = 0; done && now.more(n); ++n) done = c.act(s, times);
    out.add(times, against::nothing, 0);
    if (!done) out.refused(done.error(), against::nothing, 0);
  }
}

}  // namespace stillmap::costs
