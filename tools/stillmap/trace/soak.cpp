// stillmap soak: a simulated day of an inference server, to see whether the allocator at its end is
// what it was at its beginning.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "stillmap/allocators/replay/device_memory_usage.h"
#include "stillmap/allocators/replay/replay.h"
#include "stillmap/allocators/replay/serving/soak_run.h"
#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/json.h"
#include "tools/stillmap/common/machine.h"

namespace stillmap::tool {
namespace {

struct soak_command {
  driver_options driver;
  std::string file, profile;
  double hours = 24, rate = 5, speed = 1;
  std::uint64_t seed = 1, capacity = 0, cache = 0;
  serving_options server;
  bool json = false;
};

void print_head() {
  fmt::print("{:>5}  {:>9}  {:>11}  {:>7}  {:>7}  {:>9}  {:>9}  {:>10}  {:>9}  {:>8}  {:>8}\n",
             "hour", "requests", "operations", "ns/op", "worst", "calls", "moved", "live", "backed",
             "books", "resident");
}

void print_sample(const soak_sample &s) {
  fmt::print(
      "{:>5.4g}  {:>9}  {:>11}  {:>7.1f}  {:>7.1f}  {:>9}  {:>9}  {:>10}  {:>9}  {:>8}  {:>8}\n",
      s.ends / 3600, exact(s.answered), exact(s.ops), s.ns_per_op, s.worst_ns_per_op,
      exact(s.calls), exact(s.moved), human(s.live), human(s.backed), human(s.host_bytes),
      human(s.resident));
  std::fflush(stdout);
}

std::string as_json(const soak_result &r) {
  json_writer json;
  json.begin_object()
      .field("ops", r.ops)
      .field("requests", r.answered)
      .field("refused", r.refused)
      .field("peak_live_bytes", r.peak_live)
      .field("peak_backed_bytes", r.peak_backed)
      .field("mutex_ns", mutex_ns())
      .begin_array("samples");
  for (const soak_sample &s : r.samples) {
    json.begin_object()
        .field("hour", s.ends / 3600)
        .field("requests", s.answered)
        .field("ops", s.ops)
        .field("ns_per_op", s.ns_per_op)
        .field("worst_minute_ns_per_op", s.worst_ns_per_op)
        .field("driver_calls", s.calls)
        .field("modelled_driver_us", s.modelled_us)
        .field("pages_moved", s.moved)
        .field("pages_recalled", s.recalled)
        .field("live_bytes", s.live)
        .field("backed_bytes", s.backed)
        .field("lent_bytes", s.lent)
        .field("host_bytes", s.host_bytes)
        .field("resident_bytes", s.resident)
        .field("behind_seconds", s.behind)
        .end();
  }
  return json.end().end().text();
}

void print_verdict(const soak_result &r) {
  fmt::print("\nin all        {} operations for {} requests, {} refused\n", exact(r.ops),
             exact(r.answered), exact(r.refused));
  fmt::print("memory        {} live at most, {} backed at most\n", human(r.peak_live),
             human(r.peak_backed));
  // The first quarter is for what comes up for the first time.
  const auto &s = r.samples;
  const std::size_t warm = s.size() / 4;
  const auto most = [&](auto of, std::size_t from, std::size_t to) {
    auto best = of(s[from]);
    for (std::size_t i = from; i < to; ++i) best = std::max(best, of(s[i]));
    return best;
  };
  const auto books = [](const soak_sample &x) { return x.host_bytes; };
  const auto ns = [](const soak_sample &x) { return x.ns_per_op; };
  if (warm != 0) {
    fmt::print("its own books {} at most in the first quarter, {} after it\n",
               human(most(books, 0, warm)), human(most(books, warm, s.size())));
    fmt::print(
        "time          {:.1f} ns an operation at most by the hour in the first quarter, "
        "{:.1f} after it;\n              a std::mutex locked and unlocked: {:.1f} ns\n",
        most(ns, 0, warm), most(ns, warm, s.size()), mutex_ns());
  }
}

outcome<exit_status> run_soak(const soak_command &o) {
  auto drv = choose_driver(o.driver.driver);
  if (!drv) return tl::unexpected(drv.error());
  if (auto became = become_machine(**drv, o.profile, false); !became) {
    return tl::unexpected(became.error());
  }
  auto d = open_device(**drv, o.driver.device);
  if (!d) return tl::unexpected(d.error());

  std::vector<serving_request> recorded;
  if (!o.file.empty()) {
    auto read = read_requests(o.file);
    if (!read) return tl::unexpected(read.error());
    recorded = std::move(*read);
  }
  serving_options serving = o.server;
  soak_options options;
  options.seconds = o.hours * 3600;
  options.sample_seconds = std::min(3600.0, options.seconds / 24);
  if (o.hours >= 24) options.sample_seconds = 3600;
  if (o.capacity != 0) options.limit = o.capacity;
  // Of what is left beside the weights some is for what a step needs.
  const std::uint64_t memory =
      std::min<std::uint64_t>(o.capacity != 0 ? o.capacity : UINT64_MAX, d->total_memory().bytes());
  const std::uint64_t beside = serving.weight_bytes + 2 * serving.piece * serving.activation_bytes;
  if (o.cache != 0) {
    serving.cache_bytes = o.cache;
  } else if (memory > beside) {
    serving.cache_bytes = memory - beside;
  } else {
    return fail(exit_usage, fmt::format("{} of memory are too little for the weights ({})",
                                        human(memory), human(serving.weight_bytes)));
  }
  server of(serving, recorded.empty() ? request_source(o.rate, o.seed)
                                      : request_source(std::move(recorded), o.speed));
  if (!o.json) {
    fmt::print("driver        {}\nserver        {} of weights, {} of cache at most, {} a token\n\n",
               describe(**drv, *d), human(serving.weight_bytes), human(serving.cache_bytes),
               human(serving.token_bytes));
    print_head();
  }
  const auto r = soak(*d, of, options, o.json ? nullptr : print_sample);
  if (!r) return tl::unexpected(r.error());
  if (o.json) {
    fmt::print("{}", as_json(*r));
  } else {
    print_verdict(*r);
  }
  if (r->violations != 0) return fail(exit_failed, "FAILED: work touched memory that was gone");
  if (r->left_backed != 0) {
    return fail(exit_failed,
                fmt::format("FAILED: {} stayed when all was free", human(r->left_backed)));
  }
  return exit_ok;
}

}  // namespace

void add_soak(CLI::App &app, command_body &body) {
  auto o = std::make_shared<soak_command>();
  CLI::App *c = app.add_subcommand(
      "soak",
      "A simulated day of an inference server on the caching allocator, as fast as it goes: time,\n"
      "memory and driver calls by the hour.");
  c->footer(
      "Requests are those of a file, again and again: a CSV with a line of names, then arrival,\n"
      "prompt tokens and generated tokens (as the Azure LLM inference traces), or JSON lines with\n"
      "timestamp, input_length and output_length (as Mooncake's). Without a file they are drawn:\n"
      "--rate a second on average, half as many at midnight, half as many again at noon.\n"
      "Each has a block for its prompt's cache and then one for each --chunk tokens; each step\n"
      "takes and frees its activations; all of a request goes when it is answered.\n\n" +
      std::string(exit_status_help));
  c->add_option("requests", o->file, "a .csv or .jsonl; none: drawn")->type_name("REQUESTS");
  c->add_option("--hours", o->hours, "of the server's time (default 24)")
      ->check(CLI::Range(0.001, 10000.0));
  c->add_option("--rate", o->rate, "drawn requests a second, on average (default 5)")
      ->check(CLI::Range(0.001, 100000.0));
  c->add_option("--speed", o->speed, "recorded requests come N times as fast")
      ->type_name("N")
      ->check(CLI::Range(0.001, 100000.0));
  c->add_option("--seed", o->seed, "of the drawn requests (default 1)")->type_name("N");
  add_size(*c, "--capacity", o->capacity, "device memory there is (default: all of the device's)");
  add_size(*c, "--cache", o->cache, "the server's cache (default: what the weights leave)");
  add_size(*c, "--weights", o->server.weight_bytes, "of the model (default 16G)");
  add_size(*c, "--token", o->server.token_bytes, "cache of a token (default 128K)");
  c->add_option("--chunk", o->server.chunk, "tokens by which a cache grows (default 64)")
      ->type_name("N")
      ->check(CLI::Range(1u, 1000000u));
  c->add_flag("--two-streams", o->server.two_streams,
              "prompts are computed on a stream of their own, and\ntheir cache is used on both");
  add_driver_options(*c, o->driver);
  c->add_option("--profile", o->profile, "the machine that hostcuda plays: h200, a100, ...")
      ->type_name("NAME");
  c->add_flag("--json", o->json, "print one JSON document and nothing else");
  c->callback([o, &body] { body = [o] { return run_soak(*o); }; });
}

}  // namespace stillmap::tool
