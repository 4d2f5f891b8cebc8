#include "tools/stillmap/demo/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"

namespace stillmap::tool {
namespace {

std::string copied_words(const observed &o) {
  const std::string counter =
      o.copied_by_driver ? "the driver's counter" : "the count of driver calls";
  return fmt::format("copied   {} bytes to grow, by {}", format_count(o.copied()), counter);
}

std::string address_words(const observed &o) {
  if (!o.moved()) {
    return fmt::format("address  {} at the first byte and at the last",
                       hexadecimal(o.first_address.value()));
  }
  return fmt::format("address  moved {} times, from {} to {}", o.moves(),
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
  json.field("bytes_copied", o.copied());
  json.field("bytes_copied_by_driver_calls", o.copied_by_calls);
  json.field("bytes_copied_by_driver_counter", o.copied_by_driver);
  json.field("moves", o.moves());
  json.field("first_address", hexadecimal(o.first_address.value()));
  json.field("last_address", hexadecimal(o.last_address.value()));
  json.field("peak_memory_bytes", run.peak_memory).field("mapped_bytes", run.mapped);
  json.field("growing_seconds", run.growing).field("filling_seconds", run.filling);
  json.field("reading_seconds", run.reading);
  write_calls(json, "driver_calls", run.calls);
  json.begin_array("history");
  for (const picture_step &g : run.history) {
    json.begin_object();
    json.field("size", g.size).field("mapped", g.mapped).field("generation", g.generation);
    json.end();
  }
  json.end().end();
}

}  // namespace

std::string sentences(const demo_report &r) {
  const growth_run &run = r.in_place;
  return fmt::format("grew     to {} in {} growths\n{}\n{}\n{}", human_and_exact(run.seen.bytes),
                     run.seen.growths, address_words(run.seen), copied_words(run.seen),
                     content_words(r));
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
  out += "\nThe same job, both ways:\n";
  line("", r.was_in_place ? "in place" : "by copying", "by copying");
  line("bytes copied to grow", format_count(a.seen.copied()), format_count(b.seen.copied()));
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
  json.begin_object().field("ok", r.verdict.ok).field("line", r.verdict.line);
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
  return json.field("svg", r.svg).end().text();
}

}  // namespace stillmap::tool
