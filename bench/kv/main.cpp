// kv_bench: the memory that a key-value cache holds while a server answers recorded requests. docs/results/kv_arena.md
#include <cerrno>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "bench/kv/arguments.h"
#include "bench/kv/measure.h"
#include "bench/kv/operations.h"
#include "bench/kv/outcome_report.h"
#include "bench/kv/request_trace.h"
#include "bench/replay/simulator.h"
#include "bench/support/host.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv_bench {
namespace {

status write_file(const std::string &path, const std::string &text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return make_system_error(errno, "cannot write the file", path);
}

status write_all(const std::vector<policy_outcome> &all, const kv_arguments &given,
                 const std::string &of) {
  std::fputs(readable(all, given.model, of, given.markdown).c_str(), stdout);
  if (!given.csv.empty()) STILLMAP_RETURN_IF_ERROR(write_file(given.csv, csv(all)));
  if (!given.json.empty()) {
    STILLMAP_RETURN_IF_ERROR(write_file(given.json, json(all, of, given.smoke)));
  }
  if (given.svg.empty()) return {};
  STILLMAP_ASSIGN_OR_RETURN(const std::string picture, svg(all, given.model, of));
  return write_file(given.svg, picture);
}

status run(const kv_arguments &given) {
  STILLMAP_ASSIGN_OR_RETURN(driver *const drv, bench::find_driver());
  if (!drv->is_simulator()) {
    return make_error(errc::not_supported, "kv_bench models a server, on hostcuda only");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto requests, requests_of(given));
  if (!given.operations.empty()) return write_operations(given.operations, given.model, requests);
  std::vector<policy_outcome> all;
  for (const policy_kind &kind : policy_kinds()) {
    if (!given.policy.empty() && given.policy != kind.name) continue;
    STILLMAP_RETURN_IF_ERROR(replay::become_machine(*drv, "", false));
    STILLMAP_ASSIGN_OR_RETURN(const device d, device::open(*drv, 0));
    STILLMAP_ASSIGN_OR_RETURN(policy_outcome o,
                              measure(d, kind, given.model, requests, given.samples));
    if (!all.empty() && all.front().digest != o.digest) {
      return make_error(errc::invalid_argument, "the policies were given different events");
    }
    all.push_back(std::move(o));
  }
  if (all.empty()) return make_error(errc::invalid_argument, "there is no such policy");
  return write_all(all, given, name_of(given));
}

}  // namespace
}  // namespace stillmap::kv_bench

int main(int argc, char **argv) {
  using namespace stillmap::kv_bench;
  try {
    const auto given = parse_arguments({argv + 1, argv + argc});
    if (!given) {
      std::fprintf(stderr, "kv_bench: %s (see kv_bench --help)\n", given.error().c_str());
      return 2;
    }
    if (given->help) {
      std::fputs(help_text().c_str(), stdout);
      return 0;
    }
    const auto done = run(*given);
    if (done) return 0;
    std::fprintf(stderr, "kv_bench: %s\n", done.error().message().c_str());
  } catch (const std::exception &e) {
    std::fprintf(stderr, "kv_bench: %s\n", e.what());
  }
  return 1;
}
