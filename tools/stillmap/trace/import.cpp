// stillmap trace import: converts other programs' recordings to a trace.
#include <fmt/format.h>

#include <algorithm>

#include "bench/replay/trace_file.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace {

// "a.trace.zst", of device 1: "a.device1.trace.zst".
std::string name_for(const std::string &to, std::optional<std::size_t> device) {
  if (!device) return to;
  const std::size_t folder = to.rfind('/');
  const std::size_t name = folder == std::string::npos ? 0 : folder + 1;
  const std::size_t dot = std::min(to.find('.', name + 1), to.size());
  return fmt::format("{}.device{}{}", to.substr(0, dot), *device, to.substr(dot));
}

}  // namespace

outcome<exit_status> run_trace_import(const trace_import_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto texts, load_trace_texts(o.from));
  for (const trace_text &t : texts) {
    const auto read = read_trace(t.text);
    if (!read) return fail(exit_usage, read.error().about(o.from).message());
    const std::string to = texts.size() > 1 ? name_for(o.to, t.device) : o.to;
    STILLMAP_RETURN_IF_ERROR(save_text(to, t.text));
    const std::size_t failed = read->failures.size();
    fmt::print("{}: {} blocks, {} live at most{}\n", to, format_count(read->totals.blocks),
               format_bytes(read->totals.peak_live_bytes),
               failed == 0 ? ""
                           : fmt::format(", {} request{} out of memory", format_count(failed),
                                         failed == 1 ? "" : "s"));
  }
  return exit_ok;
}

}  // namespace stillmap::tool
