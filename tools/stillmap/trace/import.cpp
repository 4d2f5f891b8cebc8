// stillmap convert: what others recorded, as a trace.
#include <fmt/format.h>

#include "stillmap/allocators/replay/trace_file.h"
#include "tools/stillmap/cli/command.h"

namespace stillmap::tool {
namespace {

struct convert_command {
  std::string from, to;
};

outcome<exit_status> convert(const convert_command &o) {
  const auto text = load_trace_text(o.from);
  if (!text) return tl::unexpected(text.error());
  const auto read = read_trace(*text);
  if (!read) return fail(exit_usage, read.error().message(o.from));
  if (auto saved = save_text(o.to, *text); !saved) return tl::unexpected(saved.error());
  fmt::print("{}: {} blocks, {} live at most\n", o.to, exact(read->totals.blocks),
             human(read->totals.peak_live_bytes));
  return exit_ok;
}

}  // namespace

void add_convert(CLI::App &app, command_body &body) {
  auto o = std::make_shared<convert_command>();
  CLI::App *c = app.add_subcommand(
      "convert",
      "Turns a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot; nothing in it is ever\n"
      "run) or a log of RMM's logging resource into a trace; or compresses one, or the reverse.");
  c->footer(exit_status_help);
  c->add_option("from", o->from, "what to read; - is standard input")
      ->type_name("FILE")
      ->required();
  c->add_option("to", o->to, "the trace; compressed with zstd where it ends with .zst")
      ->type_name("TRACE")
      ->required();
  c->callback([o, &body] { body = [o] { return convert(*o); }; });
}

}  // namespace stillmap::tool
