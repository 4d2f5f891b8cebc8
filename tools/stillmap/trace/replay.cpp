// stillmap replay: what an allocator makes of a recorded program.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "stillmap/allocators/replay/device_memory_usage.h"
#include "stillmap/allocators/replay/replay.h"
#include "stillmap/allocators/replay/trace_file.h"
#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/common/machine.h"

namespace stillmap::tool {
namespace {

struct replay_command {
  driver_options driver;
  std::string file, allocator = target_kinds().front().name, profile, map, beside;
  std::string capacity;
  unsigned iterations = 0, shrink = 1;
  bool min_capacity = false, verify = false, every_byte = false, json = false;
};

void write_calls(json_writer &json, std::string_view key, const driver_counts &calls) {
  json.begin_object(key);
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (calls.calls[i] != 0) json.field(name_of(static_cast<driver_call>(i)), calls.calls[i]);
  }
  json.end();
}

double utilization(const replay_result &r) {
  return r.peak_backed_bytes == 0
             ? 0
             : static_cast<double>(r.peak_live_bytes) / static_cast<double>(r.peak_backed_bytes);
}

std::string as_json(const replay_command &o, const replay_result &r,
                    std::optional<std::uint64_t> min_capacity) {
  json_writer json;
  json.begin_object()
      .field("peak_live_bytes", r.peak_live_bytes)
      .field("peak_backed_bytes", r.peak_backed_bytes);
  if (o.min_capacity) {
    if (min_capacity) {
      json.field("min_capacity_bytes", *min_capacity);
    } else {
      json.nothing("min_capacity_bytes");
    }
  }
  json.field("utilization", utilization(r)).field("ops", r.ops).field("ns_per_op", r.ns_per_op);
  json.field("ns_per_op_mean", r.ns_per_op_mean);
  write_calls(json, "driver_calls", r.calls);
  write_calls(json, "driver_calls_last_iteration", r.last_iteration);
  if (r.modelled_us) {
    json.field("modelled_driver_us", *r.modelled_us);
  } else {
    json.nothing("modelled_driver_us");
  }
  if (r.modelled_last_us) {
    json.field("modelled_driver_us_last_iteration", *r.modelled_last_us);
  } else {
    json.nothing("modelled_driver_us_last_iteration");
  }
  return json.field("mutex_ns", mutex_ns()).field("oom", r.oom).end().text();
}

std::string calls_text(const driver_counts &calls) {
  std::string text;
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (calls.calls[i] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", exact(calls.calls[i]),
                        name_of(static_cast<driver_call>(i)));
  }
  return text.empty() ? "none" : text;
}

// Pictures show no history.
bool records_history(const replay_command &o) {
  if (o.map.empty() || !o.beside.empty()) return false;
  const auto format = map_format_of(o.map);
  return format && (*format == map_format::json || *format == map_format::pickle);
}

double times(std::uint64_t bytes, std::uint64_t of) {
  return of == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(of);
}

void print_text(const replay_command &o, const replay_result &r, const replay_plan &plan,
                std::optional<std::uint64_t> min_capacity) {
  fmt::print("trace         {}: {} requests in {} iteration{}, {} stream{}\n", o.file, exact(r.ops),
             plan.iterations, plan.iterations == 1 ? "" : "s", plan.streams,
             plan.streams == 1 ? "" : "s");
  fmt::print("live, peak    {}\n", human_and_exact(r.peak_live_bytes));
  fmt::print("backed, peak  {}, {:.4f} times the live bytes (utilization {:.4f})\n",
             human_and_exact(r.peak_backed_bytes), times(r.peak_backed_bytes, r.peak_live_bytes),
             utilization(r));
  if (min_capacity) {
    fmt::print("least memory  {}, {:.4f} times the live bytes\n", human_and_exact(*min_capacity),
               times(*min_capacity, r.peak_live_bytes));
  }
  // A wrong figure is worse than none: with checks in between, caches are cold; and writing history
  // takes longer than what it tells of.
  if (!o.verify && !records_history(o)) {
    fmt::print(
        "time          {:.1f} ns a request (the median iteration; {:.1f} on average); a std::mutex "
        "locked and unlocked: {:.1f} ns\n",
        r.ns_per_op, r.ns_per_op_mean, mutex_ns());
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

// "40G", or "1.05x": so many times the peak of live bytes.
outcome<std::uint64_t> capacity_of(const std::string &text, std::uint64_t peak) {
  if (!text.ends_with('x')) return parse_size(text);
  double factor = 0;
  const char *const end = text.data() + text.size() - 1;
  const auto [stop, code] = std::from_chars(text.data(), end, factor);
  if (code != std::errc() || stop != end || !(factor > 0) || factor > 1e6) {
    return fail(exit_usage, fmt::format("--capacity '{}': write a size, or times the peak of live "
                                        "bytes as in 1.05x",
                                        text));
  }
  return static_cast<std::uint64_t>(std::ceil(factor * static_cast<double>(peak)));
}

// The heap, and where asked for another allocator's: where one runs out of memory, the other is
// shown having served that very request.
outcome<void> draw_map(const replay_command &o, const device &d, const replay_plan &plan,
                       const replay_options &options, replay_result &r) {
  const auto moment_of = [&](const std::string &name,
                             replay_result &from) -> outcome<named_moment> {
    if (!from.moment) {
      return fail(exit_usage, fmt::format("'{}' does not know where its memory is: no map", name));
    }
    return named_moment{name, options.capacity.value_or(0), false, std::move(*from.moment)};
  };
  const auto at_failure_of = [&](const named_moment &failed, const target_kind *kind) {
    replay_options same = options;
    same.kind = kind;
    same.look_after = failed.moment.op;
    return replay(d, plan, same);
  };
  std::vector<named_moment> moments;
  auto first = moment_of(o.allocator, r);
  if (!first) return tl::unexpected(first.error());
  moments.push_back(std::move(*first));
  if (!o.beside.empty()) {
    const auto kind = find_target(o.beside);
    if (!kind) return tl::unexpected(kind.error());
    replay_options other = options;
    other.kind = *kind;
    auto played = moments[0].moment.oom ? at_failure_of(moments[0], *kind) : replay(d, plan, other);
    if (!played) return tl::unexpected(played.error());
    auto second = moment_of(o.beside, *played);
    if (!second) return tl::unexpected(second.error());
    moments.push_back(std::move(*second));
    moments[1].beside_a_failure = moments[0].moment.oom;
    if (moments[1].moment.oom && !moments[0].moment.oom) {
      auto again = at_failure_of(moments[1], options.kind);
      if (!again) return tl::unexpected(again.error());
      auto moment = moment_of(o.allocator, *again);
      if (!moment) return tl::unexpected(moment.error());
      moments[0] = std::move(*moment);
      moments[0].beside_a_failure = true;
    }
  }
  const std::string trace = std::filesystem::path(o.file).filename().string();
  return write_map(moments, fmt::format("{}, replayed on {}", trace, d.name()), o.map);
}

outcome<exit_status> run_replay(const replay_command &o) {
  const auto kind = find_target(o.allocator);
  if (!kind) return tl::unexpected(kind.error());
  const auto read = load_trace(o.file);
  if (!read) return tl::unexpected(read.error());
  const auto plan =
      plan_replay(*read, o.iterations != 0 ? std::optional(o.iterations) : std::nullopt, o.shrink);
  if (!plan) return tl::unexpected(plan.error());
  if (!o.map.empty()) {
    if (const auto known = map_format_of(o.map); !known) return tl::unexpected(known.error());
  }
  auto drv = choose_driver(o.driver.driver);
  if (!drv) return tl::unexpected(drv.error());
  if (auto became = become_machine(**drv, o.profile, o.verify); !became) {
    return tl::unexpected(became.error());
  }
  auto d = open_device(**drv, o.driver.device);
  if (!d) return tl::unexpected(d.error());
  if (o.verify && !keeps_content(**drv)) {
    return fail(exit_usage, "--verify needs memory that keeps its content: HOSTCUDA says unbacked");
  }

  replay_options options;
  options.kind = *kind;
  if (!o.capacity.empty()) {
    const auto bytes = capacity_of(o.capacity, plan->peak_live_bytes);
    if (!bytes) return tl::unexpected(bytes.error());
    options.capacity = *bytes;
  }
  if (o.verify) options.verify = o.every_byte ? check_depth::bytes : check_depth::pages;
  options.map = !o.map.empty();
  options.history = records_history(o);
  const std::uint64_t before = physical_bytes(**drv).value_or(0);
  auto r = replay(*d, *plan, options);
  if (!r) return tl::unexpected(r.error());
  // Rather the driver's books than an allocator's own.
  if (const auto peak = physical_peak(**drv)) r->peak_backed_bytes = *peak - before;

  std::optional<std::uint64_t> min_capacity;
  if (o.min_capacity && !r->oom) {
    replay_options unchecked = options;
    unchecked.verify.reset();
    unchecked.map = unchecked.history = false;
    const auto found = find_min_capacity(*d, *plan, unchecked, r->peak_backed_bytes);
    if (!found) return tl::unexpected(found.error());
    min_capacity = *found;
  }

  if (options.map) {
    if (auto drawn = draw_map(o, *d, *plan, options, *r); !drawn) {
      return tl::unexpected(drawn.error());
    }
  }
  if (o.json) {
    fmt::print("{}", as_json(o, *r, min_capacity));
  } else {
    fmt::print("driver        {}\nallocator     {}\n", describe(**drv, *d), o.allocator);
    print_text(o, *r, *plan, min_capacity);
    if (options.map) fmt::print("map           {}\n", o.map);
  }
  if (r->violations != 0) {
    return fail(exit_failed, fmt::format("FAILED: {} times, work touched memory that was no longer "
                                         "there for it",
                                         r->violations));
  }
  if (r->oom) return fail(exit_failed, "out of memory at " + r->where_oom);
  if (!o.json && o.verify) {
    fmt::print("stillmap: ok: every block kept its content ({} compared)\n",
               human_and_exact(r->bytes_checked));
  }
  return exit_ok;
}

}  // namespace

void add_replay(CLI::App &app, command_body &body) {
  auto o = std::make_shared<replay_command>();
  CLI::App *c = app.add_subcommand(
      "replay",
      "Replays a recorded program on an allocator: how much memory it needed, how long it took,\n"
      "what it asked of the driver.");
  std::string names = "ALLOCATORS:\n";
  for (const target_kind &k : target_kinds()) {
    names += fmt::format("  {:<20}{}\n", k.name, k.what);
  }
  c->footer(
      names +
      "\nOn hostcuda, replays need no memory (they run `unbacked`); with --verify, as much as is\n"
      "written to (`lazy`).\n"
      "Example: stillmap replay bench/traces/llama_1b.trace.zst --iterations 5 "
      "--find-min-capacity\n\n" +
      exit_status_help);
  c->add_option(
       "trace", o->file,
       "a trace, a PyTorch memory snapshot or a log of RMM, plain\nor compressed with zstd; - is "
       "standard input")
      ->type_name("TRACE")
      ->required();
  c->add_option("--allocator", o->allocator, "which one, as below (default " + o->allocator + ")")
      ->type_name("NAME");
  c->add_option(
       "--capacity", o->capacity,
       "device memory there is; 1.05x: so many times the peak\nof live bytes (default: all "
       "of the device's)")
      ->type_name("SIZE");
  c->add_flag("--find-min-capacity", o->min_capacity,
              "also search the least memory at which it does not run out");
  c->add_option("--iterations", o->iterations,
                "how many; the last ones are repeated where the\ntrace has fewer (default: the "
                "trace as it stands)")
      ->type_name("N")
      ->check(CLI::Range(1u, 1000000u));
  add_driver_options(*c, o->driver);
  c->add_option("--profile", o->profile, "the machine that hostcuda plays: h200, a100, ...")
      ->type_name("NAME");
  CLI::Option *verify = c->add_flag(
      "--verify", o->verify,
      "write a pattern to the ends of every block and around\nevery page boundary in it, and check "
      "it before the free");
  c->add_flag("--every-byte", o->every_byte, "with --verify: to every byte")->needs(verify);
  c->add_option("--shrink", o->shrink,
                "divide every size by N: to verify a large program on a\nmachine that has not its "
                "memory")
      ->type_name("N")
      ->check(CLI::Range(1u, 1000000u));
  CLI::Option *map =
      c->add_option("--map", o->map,
                    "write where the memory was at the peak of the last\niteration, or when it ran "
                    "out: FILE.svg "
                    "and .html are\npictures, .json is data, .pickle is for PyTorch's viewer")
          ->type_name("FILE");
  c->add_option("--beside", o->beside,
                "with --map, in a picture: replay this allocator too and\ndraw it beside the first")
      ->type_name("NAME")
      ->needs(map);
  c->add_flag("--json", o->json, "print one JSON document and nothing else");
  c->callback([o, &body] { body = [o] { return run_replay(*o); }; });
}

}  // namespace stillmap::tool
