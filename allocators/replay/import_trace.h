// Imports PyTorch memory snapshots and RMM logs as traces.
#pragma once

#include <string>
#include <string_view>

#include "stillmap/vmm/error.h"

namespace stillmap::replay {

enum class record_kind { stillmap, torch_snapshot, rmm_log };
// Detects the format from the beginning of the content; a trace if no other format matches.
record_kind kind_of(std::string_view content);

// The history of one device of torch.cuda.memory._snapshot(), as pickled by _dump_snapshot; which:
// the first that has one. The history is a ring: a block that was there before it is allocated at
// the trace's beginning. A block is freed where the program asked for it. Streams are numbered in
// the order in which they appear.
// Errors: invalid_argument: "file: byte N: ...", "file: event N: ...".
result<std::string> import_torch_snapshot(const std::string &file, std::string_view content);

// The CSV of RMM's logging resource (Thread,Time,Action,Pointer,Size,Stream). A block that is freed
// on another stream was used there.
// Errors: invalid_argument: "file:line: ...".
result<std::string> import_rmm_log(const std::string &file, std::string_view content);

}  // namespace stillmap::replay
