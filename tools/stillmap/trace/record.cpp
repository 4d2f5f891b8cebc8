// stillmap trace record: runs a program and records its allocation requests.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "bench/replay/trace_file.h"

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/run_program.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace fs = std::filesystem;

outcome<exit_status> run_trace_record(const trace_record_options &o) {
  const std::string output =
      o.output.empty() ? fs::path(o.program[0]).filename().string() + ".trace.zst" : o.output;
  // The recording is plain text beside the trace, so that it survives however the program ends.
  const std::string raw = fs::absolute(output).string() + ".part";
  std::error_code trouble;
  fs::remove(raw, trouble);
  STILLMAP_ASSIGN_OR_RETURN(const auto status, run_program(o.program, {"STILLMAP_RECORD=" + raw}));
  if (!fs::exists(raw, trouble)) {
    return fail(exit_failed,
                fmt::format("{} {} and made no stillmap::caching_allocator: nothing was recorded",
                            o.program[0], end_text(status)));
  }
  STILLMAP_ASSIGN_OR_RETURN(auto text, read_text(raw));
  // A program that was killed while writing leaves half a line.
  if (!text.empty() && text.back() != '\n') text.resize(text.find_last_of('\n') + 1);
  const auto read = read_trace(text);
  if (!read) return fail(exit_failed, read.error().about(raw).message());
  STILLMAP_RETURN_IF_ERROR(save_text(output, text));
  fs::remove(raw, trouble);
  const trace_totals &t = read->totals;
  fmt::print("recorded  {} events: {} blocks on {} stream{}, {} live at most, {} iteration{}\n",
             format_count(read->events.size()), format_count(t.blocks), t.streams,
             t.streams == 1 ? "" : "s", format_bytes(t.peak_live_bytes), format_count(t.iterations),
             t.iterations == 1 ? "" : "s");
  fmt::print("trace     {}\n", output);
  // Recordings of child processes.
  for (const auto &entry : fs::directory_iterator(fs::path(raw).parent_path(), trouble)) {
    const std::string name = entry.path().string();
    if (name.starts_with(raw + ".")) fmt::print("child     {}\n", name);
  }
  if (status != 0) {
    return fail(exit_failed, fmt::format("{} {}; its requests up to then are in {}", o.program[0],
                                         end_text(status), output));
  }
  return exit_ok;
}

}  // namespace stillmap::tool
