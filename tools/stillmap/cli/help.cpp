// The text of --help.
#include <fmt/format.h>

#include "tools/stillmap/cli/command.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

constexpr std::size_t description_column = 27;  // of descriptions

// A term, and its description beside it or, below a long term, on the next line.
std::string row(const std::string &term, const std::string &text, std::size_t width) {
  const std::string head = "  " + term;
  const std::string gap = head.size() + 2 > description_column
                              ? '\n' + std::string(description_column, ' ')
                              : std::string(description_column - head.size(), ' ');
  return head + gap + wrap(text, description_column, width) + '\n';
}

std::string term_of(const option &o) {
  const std::string names = join(o.names, ", ");
  return names + (names.empty() || o.value.empty() ? "" : " ") + o.value +
         (o.is_repeated && names.empty() ? "..." : "");
}

}  // namespace

std::string help_text(const command &c, std::size_t width) {
  std::string out = wrap(c.help, 0, width) + "\n\nUsage: " + c.usage() + '\n';
  if (!c.commands.empty()) {
    out += "\nCommands:\n";
    for (const command *below : c.all()) {
      if (below->run) {
        out += row(below->name().substr(c.words.empty() ? 0 : c.name().size() + 1),
                   below->summary(), width);
      }
    }
  }
  if (!c.positionals.empty()) {
    out += "\nArguments:\n";
    for (const option &p : c.positionals) out += row(term_of(p), p.help, width);
  }
  out += "\nOptions:\n" + row("-h, --help", "print this help", width);
  if (c.words.empty()) out += row("--version", "print the version", width);
  for (const option &o : c.options) {
    if (!o.is_hidden) out += row(term_of(o), o.help, width);
  }
  if (!c.notes.empty()) out += '\n' + c.notes;
  return out + '\n' + wrap(exit_status_help, 0, width) + '\n';
}

}  // namespace stillmap::tool
