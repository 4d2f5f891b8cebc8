// stillmap trace import: converts other programs' recordings to a trace.
#include <fmt/format.h>

#include "stillmap/allocators/replay/trace_file.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace {}  // namespace

outcome<exit_status> run_trace_import(const trace_import_options &o) {
  const auto text = load_trace_text(o.from);
  if (!text) return tl::unexpected(text.error());
  const auto read = read_trace(*text);
  if (!read) return fail(exit_usage, read.error().about(o.from).message());
  if (auto saved = save_text(o.to, *text); !saved) return tl::unexpected(saved.error());
  fmt::print("{}: {} blocks, {} live at most\n", o.to, format_count(read->totals.blocks),
             format_bytes(read->totals.peak_live_bytes));
  return exit_ok;
}

}  // namespace stillmap::tool
