// Which calls wait for work that runs on memory they have nothing to do with.
#include "bench/costs/parts.h"
#include "bench/costs/stage.h"
#include "bench/support/kernels.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {
namespace {

// Keeps a stream busy, on memory of its own.
class busy_kernel {
 public:
  static result<busy_kernel> load(const machine &m) {
    STILLMAP_ASSIGN_OR_RETURN(bench::kernels loaded, bench::kernels::load(m.driver()));
    busy_kernel k(std::move(loaded));
    if (auto mapped = make_piece(m, m.page())) {
      k.mapped_ = std::move(*mapped);
    } else {
      STILLMAP_ASSIGN_OR_RETURN(const device_address plain, m.driver().allocate(m.page()));
      k.plain_ = plain_memory(m.driver(), plain);
    }
    return k;
  }

  // Returns when it runs. It ends with end(), at the latest after `milliseconds`.
  status start(stream_handle stream, unsigned milliseconds) {
    return kernels_.start_busy(mapped_.there ? mapped_.begin() : plain_.get(), milliseconds,
                               stream);
  }
  status end(stream_handle stream) { return kernels_.end_busy(stream); }

 private:
  explicit busy_kernel(bench::kernels k) : kernels_(std::move(k)) {}

  piece mapped_;        // the memory that it writes to, with VMM
  plain_memory plain_;  // the same without VMM
  bench::kernels kernels_;
};

struct seen {
  std::size_t looked = 0, waited = 0;
};

status look_without(const machine &m, const staged_call &c, call_times &idle) {
  stage quiet(m);
  STILLMAP_RETURN_IF_ERROR(c.prepare(quiet));
  STILLMAP_RETURN_IF_ERROR(m.driver().synchronize_context());
  return idle.time(c.name, [&] { return c.act(quiet); });
}

// Once without work, and once while a stream has some for `milliseconds`.
status look(const machine &m, const staged_call &c, busy_kernel &work, stream_handle stream,
            unsigned milliseconds, call_times &idle, call_times &busy, seen &s) {
  const driver &drv = m.driver();
  STILLMAP_RETURN_IF_ERROR(look_without(m, c, idle));
  stage there(m);
  STILLMAP_RETURN_IF_ERROR(c.prepare(there));
  STILLMAP_RETURN_IF_ERROR(drv.synchronize_context());
  STILLMAP_RETURN_IF_ERROR(work.start(stream, milliseconds));
  const status done = busy.time(c.name, [&] { return c.act(there); });
  const auto over = drv.stream_idle(stream);
  const status ended = work.end(stream);  // before anything is given back: that may wait too
  if (!done || !ended) return done ? ended : done;
  STILLMAP_RETURN_IF_ERROR(over);
  ++s.looked;
  if (*over) ++s.waited;
  return {};
}

void say(const staged_call &c, const char *kind, unsigned milliseconds, call_times &idle,
         call_times &busy, const seen &s, table &out) {
  const double took = busy.of(c.name).summary().median_ns,
               alone = idle.of(c.name).summary().median_ns;
  // A call that takes this long by itself ends after the work in any case.
  const bool slow = alone > milliseconds * 1e6 / 2;
  const std::string verdict = s.waited == 0          ? "does not wait"
                              : slow                 ? "too slow to tell"
                              : s.waited == s.looked ? "waits"
                                                     : "sometimes waits";
  out.add_fact(std::string("waits.") + kind + "." + c.name, verdict,
               std::string(c.name) + ": " + verdict + " (work on other memory in a " + kind +
                   " stream): " + microseconds(took) + " µs with work for " +
                   std::to_string(milliseconds) + " ms, " + microseconds(alone) +
                   " µs without; it waited " + std::to_string(s.waited) + " times of " +
                   std::to_string(s.looked));
}

}  // namespace

void measure_waits(const machine &m, time_left left, bool quick, table &out) {
  const unsigned milliseconds = quick ? 10 : 50;
  out.add_fact("waits.work_ms", static_cast<double>(milliseconds),
               "work on other memory had " + std::to_string(milliseconds) + " ms to run");
  auto work = busy_kernel::load(m);
  if (!work) {
    out.refused(work.error(), against::work, milliseconds);
    return out.add_fact("waits", name_of(work.error()),
                        "there is no kernel to wait for: " + work.error().message());
  }
  // Calls that CUDA calls synchronous may wait for blocking streams only.
  double to_do = 2.0 * static_cast<double>(staged_calls().size());
  for (const bool non_blocking : {true, false}) {
    const char *const kind = non_blocking ? "non-blocking" : "blocking";
    const auto stream = m.create_stream(non_blocking);
    if (!stream) return out.refused(stream.error(), against::work, milliseconds);
    // The driver loads modules lazily, at the first launch.
    status launched = work->start(stream->get(), 1);
    if (launched) launched = work->end(stream->get());
    if (!launched) return out.refused(launched.error(), against::work, milliseconds);
    for (const staged_call &c : staged_calls()) {
      const time_left now = left.share(1 / to_do--).at_most(quick ? 2 : 20);
      if (c.vmm && !m.vmm()) continue;
      call_times idle, busy, first;
      seen s;
      status done = look_without(m, c, first);
      for (std::size_t n = 0; done && now.more(n); ++n) {
        done = look(m, c, *work, stream->get(), milliseconds, idle, busy, s);
      }
      if (non_blocking) {
        out.add(idle, against::work, 0);
        out.add(busy, against::work, milliseconds);
      }
      if (!done) {
        if (non_blocking) out.refused(done.error(), against::work, milliseconds);
        out.add_fact(std::string("waits.") + kind + "." + c.name, name_of(done.error()),
                     std::string(c.name) + " could not be tried: " + done.error().message());
        if (done.error().is(errc::device_lost)) return;
        continue;
      }
      say(c, kind, milliseconds, idle, busy, s, out);
    }
  }
}

}  // namespace stillmap::costs
