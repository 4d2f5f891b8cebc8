#include "bench/kv/outcome_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/support/host.h"
#include "stillmap/allocators/report/timeline_picture.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/json_writer.h"

namespace stillmap::kv_bench {
namespace {

std::string ratio(double held, double wanted) {
  return wanted < 1 ? "-" : fmt::format("{:.3f}", held / wanted);
}

std::string size_text(double bytes) {
  return format_bytes(static_cast<std::uint64_t>(bytes));
}

std::string percent_without(std::uint64_t busy, std::uint64_t all) {
  return all == 0 ? "-"
                  : fmt::format("{:.3f} %",
                                100 - 100.0 * static_cast<double>(busy) / static_cast<double>(all));
}

std::string milliseconds(const call_sum &sum) {
  return fmt::format("{} ({:.0f} ms)", format_count(sum.calls), sum.ns / 1e6);
}

using table_row = std::vector<std::string>;

const table_row heads = {"policy",
                         "held / wanted, mean",
                         "held / wanted, peaks",
                         "held / wanted, idle",
                         "held, idle",
                         "held, trimmed",
                         "maps at start",
                         "calls in background",
                         "calls as a step begins",
                         "calls in a step",
                         "steps without calls",
                         "begins without calls",
                         "background too long",
                         "stored twice, mean",
                         "begin_step(), p50/p99"};

table_row row_of(const policy_outcome &o) {
  const bool is_real = !o.kind->is_model;
  return {std::string(o.kind->name) + (is_real ? "" : " (model)"),
          ratio(o.mean_held, o.mean_wanted),
          ratio(o.peak_held, o.peak_wanted),
          ratio(o.idle_held, o.idle_wanted),
          size_text(o.idle_held),
          size_text(o.trimmed_held),
          format_count(o.start.maps),
          milliseconds(o.background),
          milliseconds(o.begin),
          milliseconds(o.inside),
          percent_without(o.busy_steps, o.steps),
          percent_without(o.busy_begins, o.steps),
          format_count(o.late_steps),
          size_text(o.mean_doubled),
          is_real ? fmt::format("{:.2f} / {:.1f} us", o.begin_median_ns / 1e3, o.begin_p99_ns / 1e3)
                  : "-"};
}

// Of the policies that call a driver, the functions that are most of the calls.
std::string calls_by_name(const std::vector<policy_outcome> &all) {
  std::string out;
  for (const policy_outcome &o : all) {
    std::string line;
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      if (o.calls.calls[i] * 200 <= o.calls.total()) continue;
      line += fmt::format("{} {} {}", line.empty() ? "" : ",", name_of(static_cast<driver_call>(i)),
                          format_count(o.calls.calls[i]));
    }
    if (!line.empty()) out += fmt::format("\n{}:{}\n", o.kind->name, line);
  }
  return out;
}

}  // namespace

std::string readable(const std::vector<policy_outcome> &all, const serving_model &m,
                     const std::string &of, bool markdown) {
  if (all.empty()) return {};
  const policy_outcome &first = all.front();
  std::string out = fmt::format(
      "{}: {} requests answered in {:.0f} s, {} steps of {:.0f} ms, {} preemptions, {:.1f} % of "
      "prompt tokens "
      "shared; {} of cache, {} a token; mean of live and cached tokens {}, at most {}\n\n",
      of, format_count(first.answered), first.seconds, format_count(first.steps),
      m.step_seconds * 1e3, format_count(first.preempted), first.shared * 100,
      format_bytes(m.tokens() * m.shape.bytes_per_token()), format_bytes(m.shape.bytes_per_token()),
      size_text(first.mean_wanted), size_text(first.peak_wanted));
  std::vector<table_row> rows = {heads};
  for (const policy_outcome &o : all) rows.push_back(row_of(o));
  // A line for each figure: there are fewer policies.
  for (std::size_t figure = 0; figure < heads.size(); ++figure) {
    table_row line;
    for (const table_row &r : rows) line.push_back(r[figure]);
    if (markdown) {
      out += fmt::format("| {} |\n", fmt::join(line, " | "));
      if (figure == 0)
        out += "|" + fmt::format("{}", fmt::join(table_row(rows.size(), "---|"), "")) + "\n";
      continue;
    }
    for (std::size_t i = 0; i < line.size(); ++i) {
      out += i == 0 ? fmt::format("{:<23}", line[i]) : fmt::format("{:>24}", line[i]);
    }
    out += '\n';
  }
  return out + calls_by_name(all);
}

std::string csv(const std::vector<policy_outcome> &all) {
  std::string out = "seconds,live,cached";
  std::size_t most = all.empty() ? 0 : SIZE_MAX;
  for (const policy_outcome &o : all) {
    out += fmt::format(",{}", o.kind->name);
    most = std::min(most, o.samples.size());
  }
  out += '\n';
  for (std::size_t i = 0; i < most; ++i) {
    const memory_sample &s = all.front().samples[i];
    out += fmt::format("{:.2f},{:.0f},{:.0f}", s.seconds, s.live_bytes, s.cached_bytes);
    for (const policy_outcome &o : all) out += fmt::format(",{:.0f}", o.samples[i].held_bytes);
    out += '\n';
  }
  return out;
}

std::string json(const std::vector<policy_outcome> &all, const std::string &of, bool is_smoke) {
  json_writer w;
  w.begin_object();
  w.begin_object("context");
  w.field("driver_is", "hostcuda (host memory; no GPU figures)");
  w.field("commit", bench::commit());
  w.field("smoke", is_smoke ? "yes: the numbers mean nothing" : "no");
  w.end();
  w.begin_array("benchmarks");
  for (const policy_outcome &o : all) {
    const auto per = [](double a, double b) { return b < 1 ? 0 : a / b; };
    w.begin_object();
    w.field("name", fmt::format("kv_cache/{}|{}", of, o.kind->name));
    w.field("real_time", o.begin_median_ns).field("cpu_time", o.begin_median_ns);
    w.field("time_unit", "ns").field("iterations", o.steps);
    w.field("label", o.kind->what);
    w.field("held_of_wanted", per(o.mean_held, o.mean_wanted));
    w.field("held_of_wanted_at_peak", per(o.peak_held, o.peak_wanted));
    w.field("held_of_wanted_idle", per(o.idle_held, o.idle_wanted));
    w.field("idle_MiB", o.idle_held / (1 << 20)).field("trimmed_MiB", o.trimmed_held / (1 << 20));
    w.field("maps_at_start", o.start.maps);
    w.field("calls_behind", o.background.calls).field("calls_begin", o.begin.calls);
    w.field("calls_inside", o.inside.calls);
    w.field("modelled_ms_behind", o.background.ns / 1e6);
    w.field("modelled_ms_begin", o.begin.ns / 1e6);
    w.field("modelled_ms_inside", o.inside.ns / 1e6);
    w.field("busy_steps", o.busy_steps).field("busy_begins", o.busy_begins);
    w.field("late_steps", o.late_steps).field("twice_MiB", o.mean_doubled / (1 << 20));
    w.field("begin_p99_ns", o.begin_p99_ns);
    w.end();
  }
  w.end();
  w.end();
  return std::move(w).text();
}

result<std::string> svg(const std::vector<policy_outcome> &all, const serving_model &m,
                        const std::string &of) {
  timeline_picture p;
  p.title = "Memory of a key-value cache: " + of;
  p.subtitle =
      "held over the tokens of sequences and cached prefixes; hostcuda, models by arithmetic";
  p.capacity = m.tokens() * m.shape.bytes_per_token();
  p.unit = "seconds";
  p.live_title = "tokens of sequences and cached prefixes";
  for (const policy_outcome &o : all) {
    const std::string name = o.kind->name;
    // A level line at the capacity, and what is equal to another.
    if (name == "static" || name == "kvcached-layers") continue;
    timeline_curve c;
    c.title = name + (o.kind->is_model ? " (model)" : "");
    for (const memory_sample &s : o.samples) {
      c.points.push_back({static_cast<std::uint64_t>(s.seconds),
                          static_cast<std::uint64_t>(s.wanted_bytes),
                          static_cast<std::uint64_t>(s.held_bytes)});
    }
    p.curves.push_back(std::move(c));
  }
  return to_svg(p);
}

}  // namespace stillmap::kv_bench
