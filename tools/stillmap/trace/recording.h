// A recorded program, and what the recording says about the request at which it ran out of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/base/json_writer.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct recorded_failure {
  std::string program;  // "PyTorch", "the recorded program"
  std::uint64_t requested = 0;
  std::size_t count = 1;  // of the requests that failed; this is the last
  trace_failure at;

  // Device memory that the program's allocator could have had, in bytes; 0: not recorded.
  std::uint64_t capacity() const;
  // Although the device had enough memory: its allocator had a limit of its own, or others took memory.
  bool was_limited() const;
};

std::string text_of(const recorded_failure &f);  // one line
void write(json_writer &json, const recorded_failure &f);

struct recording {
  trace requests;
  std::optional<std::size_t> device;  // of a PyTorch snapshot: the one whose history it is
  std::string chosen;                 // of several: "device 1 of 2: ..."
  std::optional<recorded_failure> failure;
};

// `device`: of a snapshot; of another recording it is ignored. By default, the one with the highest peak.
// Errors: those of load_traces; exit_usage: no history of that device.
outcome<recording> load_recording(const std::string &file, std::optional<std::size_t> device);

}  // namespace stillmap::tool
