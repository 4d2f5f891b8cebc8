// stillmap trace import: converts other programs' recordings to a trace.
#include <fmt/format.h>

#include "stillmap/allocators/replay/trace_file.h"
#include "stillmap/vmm/internal/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace {}  // namespace

outcome<exit_status> run_trace_import(const trace_import_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto text, load_trace_text(o.from));
  const auto read = read_trace(text);
  if (!read) return fail(exit_usage, read.error().about(o.from).message());
  STILLMAP_RETURN_IF_ERROR(save_text(o.to, text));
  fmt::print("{}: {} blocks, {} live at most\n", o.to, format_count(read->totals.blocks),
             format_bytes(read->totals.peak_live_bytes));
  return exit_ok;
}

}  // namespace stillmap::tool
