// stillmap quota status: who holds what of a shared quota.
#include <fmt/format.h>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/quota/quota_commands.h"

namespace stillmap::tool {
namespace {

std::string offers_of(const quota_participant &p) {
  std::vector<std::string> words;
  for (std::size_t k = 0; k < reclaim_kinds; ++k) {
    if (p.offers[k]) words.push_back(name_of(static_cast<reclaim_kind>(k)));
  }
  if (words.empty()) return "nothing";
  return join(words, ", ") + (p.listens ? "" : ", where it polls");
}

std::string maximum_of(const quota_terms &t) {
  return t.maximum == UINT64_MAX ? "-" : format_bytes(t.maximum);
}

std::string as_json(const quota_stats &s) {
  json_writer json;
  json.begin_object().field("limit_bytes", s.limit).field("reserved_bytes", s.reserved);
  json.field("device_bytes", s.device_bytes).field("outside_bytes", s.outside);
  json.field("revision", s.revision).begin_array("participants");
  for (const quota_participant &p : s.participants) {
    json.begin_object().field("pid", p.process).field("reserved_bytes", p.reserved);
    json.field("minimum_bytes", p.terms.minimum);
    p.terms.maximum == UINT64_MAX ? json.nothing("maximum_bytes")
                                  : json.field("maximum_bytes", p.terms.maximum);
    json.field("priority", p.terms.priority).field("waits_for_bytes", p.waiting);
    json.field("listens", p.listens).begin_array("offers");
    for (std::size_t k = 0; k < reclaim_kinds; ++k) {
      if (p.offers[k]) json.element(name_of(static_cast<reclaim_kind>(k)));
    }
    json.end().end();
  }
  return json.end().end().text();
}

void print(const std::string &name, const quota_stats &s) {
  fmt::print("{}: {} of {} reserved by {}, revision {}\n", printable(name),
             format_bytes(s.reserved), format_bytes(s.limit),
             counted(s.participants.size(), "participant"), s.revision);
  if (s.device_bytes != 0) {
    fmt::print("the device has {}; others than participants used {} when memory was short last\n",
               format_bytes(s.device_bytes), format_bytes(s.outside));
  }
  if (s.participants.empty()) return;
  fmt::print("{:>8}  {:>10}  {:>10}  {:>10}  {:>8}  {:>10}  gives back\n", "pid", "reserved",
             "minimum", "maximum", "priority", "waits for");
  for (const quota_participant &p : s.participants) {
    fmt::print("{:>8}  {:>10}  {:>10}  {:>10}  {:>8}  {:>10}  {}\n", p.process,
               format_bytes(p.reserved), p.terms.minimum == 0 ? "-" : format_bytes(p.terms.minimum),
               maximum_of(p.terms), p.terms.priority,
               p.waiting == 0 ? "-" : format_bytes(p.waiting), offers_of(p));
  }
}

}  // namespace

outcome<exit_status> run_quota_status(const quota_status_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto s, about(shared_quota::stats_of(o.name), o.name));
  if (o.json) {
    fmt::print("{}", as_json(s));
  } else {
    print(o.name, s);
  }
  return exit_ok;
}

}  // namespace stillmap::tool
