#include <utility>

#include "bench/costs/table.h"
#include "stillmap/vmm/base/json_writer.h"

namespace stillmap::costs {
namespace {

// Rows and facts are one a line, so that two files can be compared.
void write(json_writer &json, const row &r) {
  json.begin_record().field("call", r.call).field("against", r.against);
  json.field("x", r.x).field("threads", r.threads).field("n", r.times.n);
  if (r.times.n != 0) {
    json.field("median_ns", r.times.median_ns).field("p99_ns", r.times.p99_ns);
  } else {
    json.nothing("median_ns").nothing("p99_ns");
  }
  if (!r.error.empty()) json.field("error", r.error);
  json.end();
}

void write(json_writer &json, const fact &f) {
  json.begin_record().field("name", f.name);
  std::visit([&](const auto &value) { json.field("value", value); }, f.value);
  json.field("text", f.text).end();
}

}  // namespace

std::string json_of(const table &t) {
  json_writer json;
  json.begin_object().field("format", "stillmap-costs 1").field("device", t.device);
  json.field("driver", t.driver).field("commit", t.commit);
  if (!t.hostcuda.empty()) json.field("hostcuda", t.hostcuda);
  json.field("seconds", t.seconds).field("quick", t.quick).begin_array("rows");
  for (const row &r : t.rows) write(json, r);
  json.end().begin_array("facts");
  for (const fact &f : t.facts) write(json, f);
  json.end().end();
  return std::move(json).text();
}

}  // namespace stillmap::costs
