// The commands of `stillmap trace`: their options, and what runs them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/replay/serving/serving.h"
#include "tools/stillmap/common/machine.h"

namespace stillmap::tool {

struct trace_record_options {
  std::string output;  // empty: named after the program
  std::vector<std::string> program;
};
outcome<exit_status> run_trace_record(const trace_record_options &o);

struct trace_import_options {
  std::string from, to;
};
outcome<exit_status> run_trace_import(const trace_import_options &o);

struct trace_replay_options {
  driver_options driver;
  std::string file, allocator, profile, map, beside;
  std::string capacity;  // a size, or "1.05x"
  unsigned iterations = 0, shrink = 1, roundup_power2_divisions = 0;
  std::uint64_t max_split_size = 0, page_size = 0;
  bool min_capacity = false, verify = false, every_byte = false, json = false;
};
// exit_differs: a block did not keep its content.
outcome<exit_status> run_trace_replay(const trace_replay_options &o);

struct trace_compare_options {
  driver_options driver;
  std::string file, ours = "stillmap", other = "segments", profile, svg = "out/heap-comparison.svg",
                    timeline;
  std::uint64_t capacity = 0;
  int device = -1;  // of a snapshot, or of the driver; -1: not given
  unsigned shrink = 0, every_byte_shrink = 32;
  bool json = false;
};
outcome<exit_status> run_trace_compare(const trace_compare_options &o);

struct trace_soak_options {
  driver_options driver;
  std::string file, profile;
  double hours = 24, rate = 5, speed = 1;
  std::uint64_t seed = 1, capacity = 0, cache = 0;
  replay::serving_options server;
  bool json = false;
};
outcome<exit_status> run_trace_soak(const trace_soak_options &o);

}  // namespace stillmap::tool
