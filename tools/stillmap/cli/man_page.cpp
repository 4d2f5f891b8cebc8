#include "tools/stillmap/cli/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "stillmap/vmm/base/version.h"

namespace stillmap::tool {
namespace {

// Escapes text for roff: a hyphen is a minus, and no line begins with a request.
std::string roff(const std::string &text) {
  std::string out;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    at_start = c == '\n';
  }
  return out;
}

std::string upper(std::string s) {
  for (char &c : s) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return s;
}

std::string bold(const std::string &text) {
  return "\\fB" + roff(text) + "\\fR";
}

std::string term(const option &o) {
  std::string out;
  for (const std::string &n : o.names) out += (out.empty() ? "" : ", ") + bold(n);
  if (!o.value.empty()) {
    out += (out.empty() ? "" : " ") + ("\\fI" + roff(o.value) + "\\fR");
    if (o.is_repeated) out += " ...";
  }
  return out;
}

std::string list_of(const std::deque<option> &options) {
  std::string out;
  for (const option &o : options) {
    if (!o.is_hidden) out += ".TP\n" + term(o) + '\n' + roff(o.help) + '\n';
  }
  return out;
}

}  // namespace

std::string man_name(const command &c) {
  return c.words.empty() ? "stillmap" : "stillmap-" + c.name('-');
}

std::string man_page(const command &c) {
  const std::string title = man_name(c);
  std::string out = fmt::format(".TH {} 1 \"\" \"Stillmap {}\" \"User Commands\"\n", upper(title),
                                STILLMAP_VERSION_STRING);
  out += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}\n", roff(title), roff(c.summary()),
                     bold(c.usage()));
  out += ".SH DESCRIPTION\n" + roff(c.help) + '\n';
  if (!c.notes.empty()) out += ".PP\n.nf\n" + roff(c.notes) + ".fi\n";
  if (!c.positionals.empty()) out += ".SH ARGUMENTS\n" + list_of(c.positionals);
  if (!c.options.empty()) out += ".SH OPTIONS\n" + list_of(c.options);
  if (!c.commands.empty()) {
    out += ".SH COMMANDS\n";
    for (const command *below : c.all()) {
      if (!below->run) continue;
      out += ".TP\n" + bold(below->usage()) + '\n' + roff(below->summary()) + ".\n";
    }
  }
  const std::string statuses = exit_status_help;
  out += ".SH EXIT STATUS\n" + roff(statuses.substr(statuses.find(':') + 2)) + '\n';
  if (c.words.empty()) {
    out +=
        ".SH ENVIRONMENT\n"
        ".TP\n\\fBSTILLMAP_DRIVER\\fR\ncuda, host, or the path of a driver library\n"
        ".TP\n\\fBSTILLMAP_HOSTCUDA\\fR\nthe path of hostcuda\n"
        ".TP\n\\fBHOSTCUDA\\fR\nthe machine that hostcuda simulates\n"
        ".TP\n\\fBSTILLMAP_VERBOSE\\fR\nif set, every driver that is tried is named\n";
  }
  std::string also;
  for (const command &below : c.commands) also += ", " + bold(man_name(below)) + "(1)";
  if (!c.words.empty()) also += ", " + bold("stillmap") + "(1)";
  return out + ".SH SEE ALSO\n" + also.substr(2) + '\n';
}

}  // namespace stillmap::tool
