// Traces as files: text, or compressed with zstd where the name ends with .zst or the content
// begins as such a file does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/replay/import_trace.h"
#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

// The largest decompressed trace; a larger one is refused. So is one of over 64 MiB that is more than a
// thousand times as large as its file: recorded programs compress to a fifth, or a hundredth at best.
inline constexpr std::uint64_t most_trace_text = std::uint64_t{4} << 30;
inline constexpr std::uint64_t most_expansion = 1000,
                               free_expansion_bytes = std::uint64_t{64} << 20;

// The text of a file, decompressed; - is standard input.
// Errors: invalid_argument: not readable, a damaged or truncated archive, too large.
result<std::string> read_text(const std::string &file);

// The same; PyTorch snapshots and RMM logs are imported as traces. A snapshot has one for each device
// with a history.
result<std::vector<trace_text>> load_trace_texts(const std::string &file);

struct device_trace {
  std::optional<std::size_t> device;  // its number in a snapshot
  trace recorded;
};
// The traces in a file: one or more.
// Errors: invalid_argument: as above, or "file:line: what is wrong".
result<std::vector<device_trace>> load_traces(const std::string &file);

// One of the traces of `file`. Of a snapshot with the histories of several devices: that of `device`; by default the
// one with the highest peak of live bytes.
// Errors: invalid_argument: no history of that device.
result<device_trace> pick_trace(const std::string &file, std::vector<device_trace> all,
                                std::optional<std::size_t> device = std::nullopt);
// The trace of a file, or that one of several.
// Errors: those of load_traces.
result<trace> load_trace(const std::string &file);

// Writes a text, compressed where the name ends with .zst. Nothing is left behind on failure.
// Errors: the system's, naming the file.
status save_text(const std::string &file, const std::string &text);

}  // namespace stillmap::replay
