// stillmap trace replay: replays a recorded program on an allocator.
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "bench/replay/replay.h"
#include "bench/replay/simulator.h"
#include "bench/replay/trace_file.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace {

std::string as_json(const trace_replay_options &o, std::optional<std::size_t> device,
                    const replay_result &r, std::optional<std::uint64_t> min_capacity) {
  json_writer json;
  json.begin_object();
  if (device) json.field("device", *device);
  json.field("peak_live_bytes", r.peak_live_bytes);
  json.field("peak_committed_bytes", r.peak_committed_bytes);
  if (o.min_capacity) json.field("min_capacity_bytes", min_capacity);
  json.field("utilization", ratio(r.peak_live_bytes, r.peak_committed_bytes))
      .field("ops", r.ops)
      .field("ns_per_op", r.ns_per_op);
  json.field("ns_per_op_mean", r.ns_per_op_mean);
  if (r.cpu_ns) {
    json.begin_object("request_cpu_ns")
        .field("p50", r.cpu_ns->p50)
        .field("p99", r.cpu_ns->p99)
        .field("p999", r.cpu_ns->p999)
        .field("max", r.cpu_ns->max)
        .end();
  }
  json.field("host_bytes", r.host_bytes);
  json.field("retries", r.retries);
  write_calls(json, "driver_calls", r.calls);
  write_calls(json, "driver_calls_last_iteration", r.last_iteration);
  json.field("modelled_driver_us", r.modelled_us);
  json.field("modelled_driver_us_last_iteration", r.modelled_last_us);
  return json.field("mutex_ns", mutex_ns()).field("oom", r.oom).end().text();
}

std::string calls_text(const driver_counts &calls) {
  std::string text;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (calls.calls[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", format_count(calls.calls[i]),
                        name_of(static_cast<driver_call>(i)));
  }
  return text.empty() ? "none" : text;
}

// Only data formats hold a history.
bool records_history(const trace_replay_options &o) {
  if (o.map.empty() || !o.beside.empty()) return false;
  const auto format = map_format_of(o.map);
  return format && (*format == map_format::json || *format == map_format::pickle);
}

void print_text(const trace_replay_options &o, const replay_result &r, const replay_plan &plan,
                std::optional<std::uint64_t> min_capacity) {
  fmt::print("trace         {}: {} requests in {} iteration{}, {} stream{}\n", o.file,
             format_count(r.ops), plan.iterations, plan.iterations == 1 ? "" : "s", plan.streams,
             plan.streams == 1 ? "" : "s");
  fmt::print("live          {} at the peak\n", human_and_exact(r.peak_live_bytes));
  fmt::print("committed     {} at the peak, {:.4f} times the live bytes (utilization {:.4f})\n",
             human_and_exact(r.peak_committed_bytes),
             ratio(r.peak_committed_bytes, r.peak_live_bytes),
             ratio(r.peak_live_bytes, r.peak_committed_bytes));
  if (min_capacity) {
    fmt::print("least memory  {}, {:.4f} times the live bytes\n", human_and_exact(*min_capacity),
               ratio(*min_capacity, r.peak_live_bytes));
  }
  // Not with checks, which empty the caches, or with history, which takes longer than the request.
  if (!o.verify && !records_history(o)) {
    fmt::print(
        "time          {:.1f} ns a request (median iteration; mean {:.1f}); locking and unlocking "
        "a std::mutex: {:.1f} ns\n",
        r.ns_per_op, r.ns_per_op_mean, mutex_ns());
  }
  if (r.cpu_ns) {
    fmt::print(
        "CPU time      of a request: {} or less for half of them, {} for 99 %, {} for 99.9 %; "
        "{} at most\n",
        human_seconds(r.cpu_ns->p50 / 1e9), human_seconds(r.cpu_ns->p99 / 1e9),
        human_seconds(r.cpu_ns->p999 / 1e9), human_seconds(r.cpu_ns->max / 1e9));
  }
  if (r.host_bytes) fmt::print("host memory   {} of books\n", human_and_exact(*r.host_bytes));
  if (r.retries) {
    fmt::print("retries       {} after cached memory was released\n", format_count(*r.retries));
  }
  fmt::print("driver calls  {}\n", calls_text(r.calls));
  fmt::print("in the last   {}\n", calls_text(r.last_iteration));
  if (r.modelled_us) {
    fmt::print("modelled      {} of a GPU's driver for these calls",
               human_seconds(*r.modelled_us / 1e6));
    if (r.modelled_last_us) {
      fmt::print(", {} in the last iteration", human_seconds(*r.modelled_last_us / 1e6));
    }
    fmt::print("\n");
  }
}

// "40G", or "1.05x": this many times the peak of live bytes.
outcome<std::uint64_t> capacity_of(const std::string &text, std::uint64_t peak) {
  if (!text.ends_with('x')) return parse_size(text);
  double factor = 0;
  const char *const end = text.data() + text.size() - 1;
  const auto [stop, code] = std::from_chars(text.data(), end, factor);
  if (code != std::errc() || stop != end || !(factor > 0) || factor > 1e6) {
    return fail(exit_usage, fmt::format("--capacity: '{}' is neither a size nor a multiple of the "
                                        "peak of live bytes, such as 1.05x",
                                        text));
  }
  return static_cast<std::uint64_t>(std::ceil(factor * static_cast<double>(peak)));
}

// Draws the heap and, with --beside, another allocator's. Where one runs out of memory, the other is
// drawn after it served the same request.
outcome<void> draw_map(const trace_replay_options &o, const device &d, const replay_plan &plan,
                       const replay_options &options, replay_result &r) {
  const auto moment_of = [&](const std::string &name,
                             replay_result &from) -> outcome<named_moment> {
    if (!from.moment) {
      return fail(exit_usage, fmt::format("'{}' cannot report a map of its memory", name));
    }
    return named_moment{name, options.capacity.value_or(0), false, std::move(*from.moment)};
  };
  const auto at_failure_of = [&](const named_moment &failed, const target_kind *kind) {
    replay_options same = options;
    same.kind = kind;
    same.look_after = failed.moment.op;
    return replay::run(d, plan, same);
  };
  std::vector<named_moment> moments;
  STILLMAP_ASSIGN_OR_RETURN(auto first, moment_of(o.allocator, r));
  moments.push_back(std::move(first));
  if (!o.beside.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto kind, find_target(o.beside));
    replay_options other = options;
    other.kind = kind;
    STILLMAP_ASSIGN_OR_RETURN(auto played, moments[0].moment.oom ? at_failure_of(moments[0], kind)
                                                                 : replay::run(d, plan, other));
    STILLMAP_ASSIGN_OR_RETURN(auto second, moment_of(o.beside, played));
    moments.push_back(std::move(second));
    moments[1].beside_a_failure = moments[0].moment.oom;
    if (moments[1].moment.oom && !moments[0].moment.oom) {
      STILLMAP_ASSIGN_OR_RETURN(auto again, at_failure_of(moments[1], options.kind));
      STILLMAP_ASSIGN_OR_RETURN(moments[0], moment_of(o.allocator, again));
      moments[0].beside_a_failure = true;
    }
  }
  const std::string trace = std::filesystem::path(o.file).filename().string();
  return about(write_map(moments, fmt::format("{}, replayed on {}", trace, d.name()), o.map),
               o.map);
}

outcome<exit_status> replay_one(const trace_replay_options &o, const device_trace &of) {
  STILLMAP_ASSIGN_OR_RETURN(const auto kind, find_target(o.allocator));
  STILLMAP_ASSIGN_OR_RETURN(
      const auto plan,
      plan_replay(of.recorded, o.iterations != 0 ? std::optional(o.iterations) : std::nullopt,
                  o.shrink));
  if (!o.map.empty()) {
    STILLMAP_RETURN_IF_ERROR(map_format_of(o.map));
  }
  STILLMAP_ASSIGN_OR_RETURN(auto drv, choose_driver(o.driver.driver));
  STILLMAP_RETURN_IF_ERROR(become_machine(*drv, o.profile, o.verify));
  STILLMAP_ASSIGN_OR_RETURN(auto d, open_device(*drv, o.driver.device));
  if (o.verify && !keeps_content(*drv)) {
    return fail(exit_usage,
                "--verify: this hostcuda is unbacked: the content of blocks cannot be checked");
  }

  replay_options options;
  options.kind = kind;
  if (!o.capacity.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(options.capacity, capacity_of(o.capacity, plan.peak_live_bytes));
  }
  options.settings.record_from_environment = true;  // the program that it is set for is this one
  options.settings.page_bytes = static_cast<std::size_t>(o.page_size);
  options.settings.max_split_size = o.max_split_size;
  options.settings.roundup_power2_divisions = o.roundup_power2_divisions;
  if (o.verify) options.verify = o.every_byte ? check_depth::bytes : check_depth::pages;
  options.map = !o.map.empty();
  options.history = records_history(o);
  const std::uint64_t before = physical_bytes(*drv).value_or(0);
  STILLMAP_ASSIGN_OR_RETURN(auto r, replay::run(d, plan, options));
  // A second replay, unless the requests of this process are being recorded.
  if (!o.verify && !options.map && !r.oom && ::secure_getenv("STILLMAP_RECORD") == nullptr) {
    replay_options each = options;
    each.request_times = true;
    STILLMAP_ASSIGN_OR_RETURN(const auto again, replay::run(d, plan, each));
    r.cpu_ns = again.cpu_ns;
  }
  // The driver's count is preferred to the allocator's own.
  if (const auto peak = physical_peak(*drv)) r.peak_committed_bytes = *peak - before;

  std::optional<std::uint64_t> min_capacity;
  if (o.min_capacity && !r.oom) {
    replay_options unchecked = options;
    unchecked.verify.reset();
    unchecked.map = unchecked.history = false;
    STILLMAP_ASSIGN_OR_RETURN(min_capacity,
                              find_min_capacity(d, plan, unchecked, r.peak_committed_bytes));
  }

  if (options.map) {
    STILLMAP_RETURN_IF_ERROR(draw_map(o, d, plan, options, r));
  }
  if (r.violations != 0) {
    return fail(
        exit_differs,
        fmt::format("device work accessed memory after it was taken away, {} times", r.violations));
  }
  if (o.json) {
    fmt::print("{}", as_json(o, of.device, r, min_capacity));
    return r.oom ? exit_failed : exit_ok;
  }
  if (of.device) fmt::print("snapshot      device {}\n", *of.device);
  fmt::print("driver        {}\nallocator     {}\n", describe(*drv, d), o.allocator);
  print_text(o, r, plan, min_capacity);
  if (options.map) fmt::print("map           {}\n", o.map);
  if (r.oom) return fail(exit_failed, fmt::format("{}: out of memory at {}", o.file, r.where_oom));
  if (o.verify) {
    fmt::print("stillmap: ok: every block kept its content ({} compared)\n",
               human_and_exact(r.bytes_checked));
  }
  return exit_ok;
}

}  // namespace

outcome<exit_status> run_trace_replay(const trace_replay_options &o) {
  const bool settings = o.max_split_size != 0 || o.roundup_power2_divisions != 0;
  if (settings && !o.allocator.starts_with("segments") && !o.allocator.starts_with("torch")) {
    return fail(exit_usage, fmt::format("--max-split-size and --roundup-power2-divisions are "
                                        "settings of 'segments' and 'torch'; '{}' has none",
                                        o.allocator));
  }
  if (o.page_size != 0 && o.allocator != "stillmap") {
    return fail(exit_usage,
                fmt::format("--page-size is a setting of 'stillmap'; '{}' has none", o.allocator));
  }
  if (std::popcount(o.roundup_power2_divisions) > 1) {
    return fail(exit_usage, fmt::format("--roundup-power2-divisions {}: not a power of two",
                                        o.roundup_power2_divisions));
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto traces, load_traces(o.file));
  if (traces.size() > 1 && !o.map.empty()) {
    return fail(exit_usage,
                fmt::format("--map: {} has the histories of {} devices; `stillmap trace "
                            "import` makes a trace of each",
                            o.file, traces.size()));
  }
  exit_status worst = exit_ok;
  for (const device_trace &t : traces) {
    if (o.json && traces.size() > 1) fmt::print("{}", &t == &traces.front() ? "[\n" : ",\n");
    STILLMAP_ASSIGN_OR_RETURN(const exit_status status, replay_one(o, t));
    worst = std::max(worst, status);
  }
  if (o.json && traces.size() > 1) fmt::print("]\n");
  return worst;
}

}  // namespace stillmap::tool
