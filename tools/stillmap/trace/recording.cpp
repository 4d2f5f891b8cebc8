#include "tools/stillmap/trace/recording.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/replay/trace_file.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::tool {
namespace {

using namespace literals;

// The device memory that PyTorch's allocator requests of the driver for a block.
std::uint64_t segment_of(std::uint64_t bytes) {
  if (bytes <= 1_MiB) return 2_MiB;
  return bytes < 10_MiB ? 20_MiB : divide_up(bytes, 2_MiB) * 2_MiB;
}

}  // namespace

bool recorded_failure::was_limited() const {
  return at.held != 0 && at.device_free >= segment_of(requested);
}

std::uint64_t recorded_failure::capacity() const {
  return at.held + (was_limited() || at.held == 0 ? 0 : at.device_free);
}

std::string text_of(const recorded_failure &f) {
  std::string text =
      fmt::format("{} ran out of memory asking for {}", f.program, format_bytes(f.requested));
  if (f.at.held != 0) {
    text += fmt::format(
        ", with {} of device memory free and, of the {} it held, {} free in {} piece{}",
        format_bytes(f.at.device_free), format_bytes(f.at.held), format_bytes(f.at.cached),
        format_count(f.at.pieces), f.at.pieces == 1 ? "" : "s");
    if (f.at.pieces != 0) text += fmt::format(", the largest {}", format_bytes(f.at.largest));
  }
  if (f.count > 1) {
    text += fmt::format(" (the last of {} requests that failed)", format_count(f.count));
  }
  return text;
}

void write(json_writer &json, const recorded_failure &f) {
  json.begin_object("recorded_failure")
      .field("count", f.count)
      .field("requested_bytes", f.requested);
  if (f.at.held != 0) {
    json.field("device_free_bytes", f.at.device_free)
        .field("held_bytes", f.at.held)
        .field("free_in_pieces_bytes", f.at.cached)
        .field("pieces", f.at.pieces)
        .field("largest_piece_bytes", f.at.largest)
        .field("limited", f.was_limited());
  }
  json.end();
}

outcome<recording> load_recording(const std::string &file, std::optional<std::size_t> device) {
  STILLMAP_ASSIGN_OR_RETURN(auto all, replay::load_traces(file));
  const std::size_t count = all.size();
  const bool by_default = !device;
  if (!all.front().device) device.reset();
  STILLMAP_ASSIGN_OR_RETURN(auto one, replay::pick_trace(file, std::move(all), device));
  recording out{std::move(one.recorded), one.device, {}, {}};
  if (count > 1) {
    out.chosen =
        fmt::format("device {} of {}{}", *out.device, count,
                    by_default ? ": the one with the highest peak; --device chooses another" : "");
  }
  const trace &t = out.requests;
  if (t.failures.empty()) return out;
  const auto last = std::find_if(t.events.rbegin(), t.events.rend(),
                                 [](const auto &e) { return e.verb == trace_verb::fail; });
  out.failure = {out.device ? "PyTorch" : "the recorded program", last->bytes, t.failures.size(),
                 t.failures[last->block]};
  return out;
}

}  // namespace stillmap::tool
