// Imports PyTorch memory snapshots and RMM logs as traces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

enum class record_kind { stillmap, torch_snapshot, rmm_log };
// Detects the format from the beginning of the content; a trace if no other format matches.
record_kind kind_of(std::string_view content);

// A trace as text. `device`: its number in a snapshot.
struct trace_text {
  std::optional<std::size_t> device;
  std::string text;
};

// Imports the histories in a pickle of torch.cuda.memory._snapshot(), written by _dump_snapshot: a
// trace for each device that has one. The history is a ring: blocks from before it are allocated at
// the trace's beginning. A block is freed where the program freed it. Streams are numbered in the
// order in which they appear. A request that ran out of memory is a failure, with the figures of PyTorch's
// heap at that moment; before the last 64 of them, without figures.
// Errors: invalid_argument: "file: byte N: ...", "file: event N: ...".
// Cost:   proportional to the content: a pickle that refers to an object again and again is refused.
result<std::vector<trace_text>> import_torch_snapshot(const std::string &file,
                                                      std::string_view content);

// The CSV of RMM's logging resource (Thread,Time,Action,Pointer,Size,Stream). A block that is freed
// on another stream was used there. An "allocate failure" is a failure, without figures.
// Errors: invalid_argument: "file:line: ...".
result<std::string> import_rmm_log(const std::string &file, std::string_view content);

}  // namespace stillmap::replay
