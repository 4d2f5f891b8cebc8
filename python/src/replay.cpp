// Recorded traces, replayed on an allocator.
#include "python/src/replay.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bench/replay/replay.h"
#include "bench/replay/trace_file.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/paths.h"
#include "stillmap/allocators/trace/internal/trace_recorder.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

nb::dict dict_of(const driver_counts &counts) {
  nb::dict d;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (counts.calls[i] != 0) d[name_of(static_cast<driver_call>(i))] = counts.calls[i];
  }
  return d;
}

nb::dict dict_of(const replay::replay_result &r) {
  nb::dict d;
  d["peak_live_bytes"] = r.peak_live_bytes;
  d["peak_committed_bytes"] = r.peak_committed_bytes;
  d["ops"] = r.ops;
  d["ns_per_op"] = r.ns_per_op;
  d["oom"] = r.oom;
  d["where_oom"] = r.where_oom;
  d["moved_bytes"] = r.moved_bytes;
  d["bytes_checked"] = r.bytes_checked;
  d["violations"] = r.violations;
  d["driver_calls"] = dict_of(r.calls);
  d["driver_calls_last_iteration"] = dict_of(r.last_iteration);
  d["modelled_driver_us"] = r.modelled_us ? nb::cast(*r.modelled_us) : nb::none();
  return d;
}

nb::dict replay_file(nb::handle path, const std::string &allocator,
                     std::optional<std::uint64_t> capacity, std::optional<unsigned> iterations,
                     bool verify, int ordinal) {
  const std::string file = path_of(path);
  return dict_of(value_of(without_gil([&]() -> result<replay::replay_result> {
    STILLMAP_ASSIGN_OR_RETURN(const replay::target_kind *const kind,
                              replay::find_target(allocator));
    STILLMAP_ASSIGN_OR_RETURN(const trace recorded, replay::load_trace(file));
    STILLMAP_ASSIGN_OR_RETURN(const replay::replay_plan plan,
                              replay::plan_replay(recorded, iterations));
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    replay::replay_options options;
    options.kind = kind;
    options.capacity = capacity;
    if (verify) options.verify = replay::check_depth::bytes;
    return replay::run(d, plan, options);
  })));
}

// The recorder of a file is the process's: every allocator that names the file shares it.
result<std::shared_ptr<trace_recorder>> recorder_of(nb::handle path) {
  const std::string file = path_of(path);
  return without_gil([&] { return trace_recorder::open(file); });
}

}  // namespace

void bind_replay(nb::module_ &m) {
  m.def(
      "replay", &replay_file, nb::arg("path"), nb::arg("allocator") = "stillmap", nb::kw_only(),
      nb::arg("capacity").none() = nb::none(), nb::arg("iterations").none() = nb::none(),
      nb::arg("verify") = false, nb::arg("device") = 0,
      "Replays a recorded trace (also a PyTorch memory snapshot, or a log of RMM) on an "
      "allocator (of a snapshot of several devices, the one with the highest peak):\n"
      "peak_live_bytes, peak_committed_bytes, ns_per_op, oom, driver_calls ... capacity: bytes of\n"
      "device memory; less than the device has. verify: writes and checks every byte.\n"
      "allocator: stillmap, segments, segments-expanding, pool, direct, torch, torch-expanding.\n"
      "Raises InvalidArgumentError: not a trace, an unknown allocator. Running out of memory is a\n"
      "result.");
  m.def(
      "_open_recording",
      [](nb::handle path) {
        const auto recorder = value_of(recorder_of(path));
        return nb::steal(PyUnicode_DecodeFSDefault(recorder->path().c_str()));
      },
      nb::arg("path"),
      "Creates the file; returns its name, which has the process id if it exists.");
  m.def(
      "_flush_recording",
      [](nb::handle path) {
        const auto recorder = value_of(recorder_of(path));
        without_gil([&] { recorder->flush(); });
      },
      nb::arg("path"));
}

}  // namespace stillmap::python
