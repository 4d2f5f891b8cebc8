// stillmap trace soak: a simulated day of an inference server, to see whether time and memory stay
// constant.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "bench/replay/replay.h"
#include "bench/replay/serving/soak_run.h"
#include "bench/replay/simulator.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace {

void print_sample(const soak_sample &s) {
  fmt::print(
      "{:>5.4g}  {:>9}  {:>11}  {:>7.1f}  {:>7.1f}  {:>9}  {:>9}  {:>10}  {:>9}  {:>8}  {:>8}\n",
      s.ends / 3600, format_count(s.answered), format_count(s.ops), s.ns_per_op, s.worst_ns_per_op,
      format_count(s.calls), format_count(s.moved), format_bytes(s.live), format_bytes(s.committed),
      format_bytes(s.host_bytes), format_bytes(s.resident));
  std::fflush(stdout);
}

std::string as_json(const soak_result &r) {
  json_writer json;
  json.begin_object().field("ops", r.ops).field("requests", r.answered);
  json.field("refused", r.refused).field("peak_live_bytes", r.peak_live);
  json.field("peak_committed_bytes", r.peak_committed).field("mutex_ns", mutex_ns());
  json.begin_array("samples");
  for (const soak_sample &s : r.samples) {
    json.begin_object().field("hour", s.ends / 3600).field("requests", s.answered);
    json.field("ops", s.ops).field("ns_per_op", s.ns_per_op);
    json.field("worst_minute_ns_per_op", s.worst_ns_per_op).field("driver_calls", s.calls);
    json.field("modelled_driver_us", s.modelled_us).field("pages_moved", s.moved);
    json.field("pages_recalled", s.recalled).field("live_bytes", s.live);
    json.field("committed_bytes", s.committed).field("aliased_bytes", s.aliased);
    json.field("host_bytes", s.host_bytes).field("resident_bytes", s.resident);
    json.field("behind_seconds", s.behind).end();
  }
  return json.end().end().text();
}

void print_verdict(const soak_result &r) {
  fmt::print("\ntotal         {} operations for {} requests, {} refused\n", format_count(r.ops),
             format_count(r.answered), format_count(r.refused));
  fmt::print("memory        at most {} live, {} committed\n", format_bytes(r.peak_live),
             format_bytes(r.peak_committed));
  // The first quarter is the warm-up.
  const auto &s = r.samples;
  const std::size_t warm = s.size() / 4;
  const auto most = [&](auto member, std::size_t from, std::size_t to) {
    return std::ranges::max(std::span(s).subspan(from, to - from), {}, member).*member;
  };
  const auto metadata = &soak_sample::host_bytes;
  const auto ns = &soak_sample::ns_per_op;
  if (warm != 0) {
    fmt::print("metadata      at most {} in the first quarter, {} after it\n",
               format_bytes(most(metadata, 0, warm)), format_bytes(most(metadata, warm, s.size())));
    fmt::print(
        "time          at most {:.1f} ns an operation in an hour of the first quarter, {:.1f} "
        "after it;\n              locking and unlocking a std::mutex: {:.1f} ns\n",
        most(ns, 0, warm), most(ns, warm, s.size()), mutex_ns());
  }
}

}  // namespace

outcome<exit_status> run_trace_soak(const trace_soak_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(auto drv, choose_driver(o.driver.driver));
  STILLMAP_RETURN_IF_ERROR(become_machine(*drv, o.profile, false));
  STILLMAP_ASSIGN_OR_RETURN(auto d, open_device(*drv, o.driver.device));

  std::vector<serving_request> recorded;
  if (!o.file.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(recorded, read_requests(o.file));
  }
  serving_options serving = o.server;
  soak_options options;
  options.seconds = o.hours * 3600;
  options.sample_seconds = std::min(3600.0, options.seconds / 24);
  if (o.hours >= 24) options.sample_seconds = 3600;
  if (o.capacity != 0) options.limit = o.capacity;
  // Activations need memory beside the weights and the cache.
  const std::uint64_t memory =
      std::min<std::uint64_t>(o.capacity != 0 ? o.capacity : UINT64_MAX, d.total_memory().bytes());
  const std::uint64_t beside = serving.weight_bytes + 2 * serving.piece * serving.activation_bytes;
  if (o.cache != 0) {
    serving.cache_bytes = o.cache;
  } else if (memory > beside) {
    serving.cache_bytes = memory - beside;
  } else {
    return fail(exit_usage, fmt::format("{} of memory are not enough for the weights ({})",
                                        format_bytes(memory), format_bytes(serving.weight_bytes)));
  }
  server of(serving, recorded.empty() ? request_source(o.rate, o.seed)
                                      : request_source(std::move(recorded), o.speed));
  if (!o.json) {
    fmt::print("driver        {}\nserver        {} of weights, {} of cache at most, {} a token\n\n",
               describe(*drv, d), format_bytes(serving.weight_bytes),
               format_bytes(serving.cache_bytes), format_bytes(serving.token_bytes));
    fmt::print("{:>5}  {:>9}  {:>11}  {:>7}  {:>7}  {:>9}  {:>9}  {:>10}  {:>9}  {:>8}  {:>8}\n",
               "hour", "requests", "operations", "ns/op", "worst", "calls", "moved", "live",
               "committed", "metadata", "resident");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto r, soak(d, of, options, o.json ? nullptr : print_sample));
  if (r.violations != 0) {
    return fail(exit_differs, "device work accessed memory after it was taken away");
  }
  if (r.left_committed != 0) {
    return fail(exit_failed, fmt::format("{} stayed committed after all blocks were freed",
                                         format_bytes(r.left_committed)));
  }
  if (o.json) {
    fmt::print("{}", as_json(r));
  } else {
    print_verdict(r);
  }
  return exit_ok;
}

}  // namespace stillmap::tool
