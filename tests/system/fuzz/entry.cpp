#include "tests/system/fuzz/entry.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <stdexcept>

#include "stillmap/allocators/trace/trace.h"
#include "tests/support/buffer_model.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/vector_model.h"

namespace stillmap::testing {
namespace {

std::string fuzz_buffer(const std::uint8_t *data, std::size_t size) {
  const op_sequence ops = buffer_model::from_bytes(data, size);
  const auto failed = buffer_model::run(ops);
  return failed ? failed->what + "\nops = \"" + to_text(ops) + "\"" : "";
}

std::string fuzz_vector(const std::uint8_t *data, std::size_t size) {
  const op_sequence ops = vector_ops_from_bytes(data, size);
  const auto failed = run_vector_model(ops);
  return failed ? failed->what + "\nops = \"" + to_text(ops) + "\"" : "";
}

// A sequence that parses is printed as text that parses to the same sequence.
std::string fuzz_sequence_text(const std::string &text) {
  const auto ops = parse_ops(text);
  if (!ops || parse_ops(to_text(*ops)) == *ops) return "";
  return "the sequence does not survive being printed: " + to_text(*ops);
}

// hostcuda either rejects a configuration and changes nothing, or accepts it and also accepts the
// configuration that it then reports.
std::string fuzz_config(const std::string &text) {
  hostcuda_control::reset("profile=a100,memory=1G");
  const std::string before = hostcuda_control::config();
  try {
    hostcuda_control::reset(text.c_str());
  } catch (const std::runtime_error &) {
    const std::string after = hostcuda_control::config();
    return after == before ? "" : "a refused configuration changed the machine to " + after;
  }
  const std::string taken = hostcuda_control::config();
  std::string wrong;
  try {
    hostcuda_control::reset(taken.c_str());
    if (hostcuda_control::config() != taken) wrong = "taken back as " + hostcuda_control::config();
  } catch (const std::runtime_error &) {
    wrong = "refused when given back";
  }
  hostcuda_control::reset();
  return wrong.empty() ? "" : "'" + text + "' became '" + taken + "', " + wrong;
}

// Driver names, as in STILLMAP_DRIVER: a name without a driver fails with not_supported. Paths are
// in a folder that does not exist, so that no library is loaded by chance.
std::string fuzz_driver_name(const std::string &text) {
  const auto loaded = driver::load("/nonexistent/" + text.substr(0, text.find('\0')));
  if (loaded) return "a driver was found at /nonexistent/" + text;
  if (!loaded.error().is(errc::not_supported)) return "no reason: " + loaded.error().message();
  return "";
}

// A trace is accepted as a whole, or rejected with the number of an existing line. An accepted
// trace has the right totals, and is unchanged after it is written and read again.
std::string fuzz_trace(const std::string &text) {
  const auto read = read_trace(text);
  if (!read) {
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
    const error_detail &d = read.error().detail();
    const std::size_t line = d.where.starts_with("line ") ? std::stoul(d.where.substr(5)) : 0;
    const bool sound = line >= 1 && line <= lines && !d.cause.empty() && d.cause.size() < 300;
    return sound ? "" : "no reason: " + read.error().message();
  }
  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t now = 0, peak = 0, next = 0, failures = 0;
  for (const trace_event &e : read->events) {
    if (e.verb == trace_verb::fail && e.block != failures++) return "a wrong failure in: " + text;
    if (e.verb == trace_verb::allocate) {
      if (e.block != next++ || e.bytes == 0) return "a wrong block in: " + text;
      live[e.block] = e.bytes;
      peak = std::max(peak, now += e.bytes);
    } else if (e.verb == trace_verb::free || e.verb == trace_verb::use) {
      if (live.count(e.block) == 0) return "a dead block in: " + text;
      if (e.verb == trace_verb::use) continue;
      now -= live[e.block];
      live.erase(e.block);
    }
    if (std::max(e.stream, e.waits) >= read->totals.streams && e.verb != trace_verb::free &&
        e.verb != trace_verb::iteration) {
      return "a stream over the number of streams in: " + text;
    }
  }
  const trace_totals &t = read->totals;
  if (t.peak_live_bytes != peak || t.live_bytes != now || t.live_blocks != live.size()) {
    return "wrong sums of: " + text;
  }
  const auto again = read_trace(to_text(*read));
  return again && again->events == read->events && again->failures == read->failures
             ? ""
             : "does not survive being written: " + text;
}

}  // namespace

std::string fuzz_one(const std::uint8_t *data, std::size_t size) {
  if (size == 0) return "";
  const auto target =
      static_cast<fuzz_target>(data[0] % static_cast<std::uint8_t>(fuzz_target::count));
  ++data;
  --size;
  const std::string text(reinterpret_cast<const char *>(data), size);
  switch (target) {
    case fuzz_target::buffer:
      return fuzz_buffer(data, size);
    case fuzz_target::vector:
      return fuzz_vector(data, size);
    case fuzz_target::sequence_text:
      return fuzz_sequence_text(text);
    case fuzz_target::config:
      return fuzz_config(text.substr(0, text.find('\0')));
    case fuzz_target::trace_text:
      return fuzz_trace(text);
    default:
      return fuzz_driver_name(text);
  }
}

}  // namespace stillmap::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
  const std::string wrong = stillmap::testing::fuzz_one(data, size);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    __builtin_trap();
  }
  return 0;
}
