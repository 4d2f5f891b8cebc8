// Traces as files: text, or compressed with zstd where the name ends with .zst or the content
// begins as such a file does.
#pragma once

#include <cstdint>
#include <string>

#include "stillmap/allocators/trace/trace.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// What a compressed file may become: beyond it, it is a mistake or an attack.
inline constexpr std::uint64_t most_trace_text = std::uint64_t{4} << 30;

// The text of a file, decompressed; - is standard input.
// Errors: exit_usage: not readable, a damaged or truncated archive, too large.
outcome<std::string> read_text(const std::string &file);

// The same as a trace: what import_trace.h knows is turned into one.
outcome<std::string> load_trace_text(const std::string &file);

// A trace from a file.
// Errors: exit_usage: as above, or "file:line: what is wrong".
outcome<trace> load_trace(const std::string &file);

// Writes a text, compressed where the name ends with .zst. Nothing is left behind on failure.
// Errors: exit_failed, with the file and why.
outcome<void> save_text(const std::string &file, const std::string &text);

}  // namespace stillmap::tool
