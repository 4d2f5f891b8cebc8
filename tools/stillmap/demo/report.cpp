#include "tools/stillmap/demo/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/stillmap/common/size.h"

namespace stillmap::tool {
namespace {

std::string copied_words(const observed &o) {
  const std::string counter =
      o.copied_by_driver ? "the driver's counter" : "the count of driver calls";
  return fmt::format("copied   {} bytes to grow, by {}",
                     format_count(o.copied_by_driver.value_or(o.copied_by_calls)), counter);
}

std::string address_words(const observed &o) {
  const std::uint64_t moves = std::max(o.moves_seen, o.relocations);
  if (moves == 0 && o.first_address == o.last_address) {
    return fmt::format("address  {} at the first byte and at the last",
                       hexadecimal(o.first_address.value()));
  }
  return fmt::format("address  moved {} times, from {} to {}", moves,
                     hexadecimal(o.first_address.value()), hexadecimal(o.last_address.value()));
}

std::string content_words(const demo_report &r) {
  const observed &o = r.in_place.seen;
  if (o.differs || o.digests_differ || !o.source_trouble.empty() || o.bytes_checked != o.bytes) {
    return "content  WRONG";
  }
  return fmt::format("content  all {} bytes read back from the device {}",
                     format_count(o.bytes_checked),
                     r.in_place.digest_used ? "have the digest of the source" : "equal the source");
}

void run_json(const growth_run &run, const char *key, json_writer &json) {
  const observed &o = run.seen;
  json.begin_object(key);
  json.field("bytes", o.bytes).field("growths", o.growths);
  json.field("bytes_copied", o.copied_by_driver.value_or(o.copied_by_calls));
  json.field("bytes_copied_by_driver_calls", o.copied_by_calls);
  json.field("bytes_copied_by_driver_counter", o.copied_by_driver);
  json.field("moves", std::max(o.moves_seen, o.relocations));
  json.field("first_address", hexadecimal(o.first_address.value()));
  json.field("last_address", hexadecimal(o.last_address.value()));
  json.field("peak_memory_bytes", run.peak_memory).field("mapped_bytes", run.mapped);
  json.field("growing_seconds", run.growing).field("filling_seconds", run.filling);
  json.field("reading_seconds", run.reading);
  json.begin_object("driver_calls");
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (run.calls.calls[i] != 0)
      json.field(name_of(static_cast<driver_call>(i)), run.calls.calls[i]);
  }
  json.end();
  json.begin_array("history");
  for (const growth_sample &g : run.history) {
    json.begin_object();
    json.field("size", g.size).field("mapped", g.mapped).field("generation", g.generation);
    json.end();
  }
  json.end().end();
}

}  // namespace

std::string sentences(const demo_report &r) {
  const growth_run &run = r.in_place;
  std::string out = fmt::format("grew     to {} in {} growths\n", human_and_exact(run.seen.bytes),
                                run.seen.growths);
  out += address_words(run.seen) + '\n';
  out += copied_words(run.seen) + '\n';
  out += content_words(r);
  return out;
}

std::string table(const demo_report &r) {
  const growth_run &a = r.in_place, &b = r.by_copying;
  const bool both = r.comparison == comparison::done;
  std::string out;
  const auto line = [&](const std::string &what, const std::string &left,
                        const std::string &right) {
    std::string text = fmt::format("  {:<26}{:>18}", what, left);
    if (both) text += fmt::format("{:>22}", right);
    out += text + '\n';
  };
  const auto copied = [](const growth_run &run) {
    return run.seen.copied_by_driver.value_or(run.seen.copied_by_calls);
  };
  out += "\nThe same job, both ways:\n";
  line("", r.was_in_place ? "in place" : "by copying", "by copying");
  line("bytes copied to grow", format_count(copied(a)), format_count(copied(b)));
  line("times the address changed", format_count(a.seen.relocations),
       format_count(b.seen.relocations));
  line("peak device memory", format_bytes(a.peak_memory), format_bytes(b.peak_memory));
  line("growths", format_count(a.seen.growths), format_count(b.seen.growths));
  line("time: growing", human_seconds(a.growing), human_seconds(b.growing));
  line("time: filling", human_seconds(a.filling), human_seconds(b.filling));
  line("time: both", human_seconds(a.growing + a.filling), human_seconds(b.growing + b.filling));
  out += "  (without the time to read the source)\n";
  if (!both) out += fmt::format("  By copying: {}.\n", r.why_no_comparison);
  return out;
}

std::string as_json(const demo_report &r) {
  json_writer json;
  json.begin_object();
  json.field("ok", r.verdict.ok).field("line", r.verdict.line);
  json.field("driver", r.driver).field("driver_path", r.driver_path);
  json.field("driver_version", r.driver_version);
  json.begin_object("source").field("name", r.source).field("file_bytes", r.source_bytes);
  json.field("at_least", r.at_least).end();
  run_json(r.in_place, r.was_in_place ? "in_place" : "by_copying", json);
  if (r.comparison == comparison::done) {
    run_json(r.by_copying, "comparison", json);
  } else {
    json.nothing("comparison").field("why_no_comparison", r.why_no_comparison);
  }
  write_json(r.map, json);
  json.field("svg", r.svg);
  json.end();
  return json.text();
}

}  // namespace stillmap::tool
