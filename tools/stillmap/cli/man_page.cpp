#include "tools/stillmap/cli/man_page.h"

#include <fmt/format.h>

#include <cctype>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {
namespace {

// Text as roff takes it: a hyphen is a minus, and no line begins with a command.
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

std::string term(const option_info &o) {
  std::string names;
  for (const std::string &n : o.names) {
    names += (names.empty() ? "" : ", ") + ("\\fB" + roff(n) + "\\fR");
  }
  if (!o.value.empty()) {
    names += (names.empty() ? "" : " ") + ("\\fI" + roff(o.value) + "\\fR");
    if (o.many) names += " ...";
  }
  return names;
}

std::string list_of(const std::vector<option_info> &some) {
  std::string out;
  for (const option_info &o : some) {
    out += fmt::format(".TP\n{}\n{}\n", term(o), roff(one_line(o.help)));
  }
  return out;
}

// What the options are for, without the one that every command has.
std::string body_of(const command_info &c) {
  std::string out = roff(one_line(c.help)) + "\n" + list_of(c.positionals);
  std::vector<option_info> own;
  for (const option_info &o : c.options) {
    if (o.names.back() != "--help") own.push_back(o);
  }
  return out + list_of(own);
}

// Of a footer what stands before the exit status, which has a section of its own.
std::string notes_of(const command_info &c) {
  const std::size_t end = c.footer.find("Exit status:");
  std::string out = c.footer.substr(0, end);
  while (!out.empty() && std::isspace(static_cast<unsigned char>(out.back())) != 0) out.pop_back();
  return out.empty() ? out : ".PP\n.nf\n" + roff(out) + "\n.fi\n";
}

std::string exit_statuses() {
  std::string text = one_line(exit_status_help);
  return text.substr(text.find(':') + 2);
}

}  // namespace

std::string man_page(const command_info &c) {
  const bool whole = c.words.empty();
  const std::string title = whole ? "stillmap" : "stillmap-" + c.name('-');
  std::string out = fmt::format(".TH {} 1 \"\" \"Stillmap\" \"User Commands\"\n", upper(title));
  out += fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n\\fB{}\\fR\n", roff(title),
                     roff(c.summary()), roff(c.usage()));
  out += ".SH DESCRIPTION\n" + (whole ? roff(c.summary()) + ".\n" : body_of(c) + notes_of(c));
  if (!c.commands.empty()) {
    out += ".SH COMMANDS\n";
    for (const command_info *below : all_of(c)) {
      if (below == &c) continue;
      out += fmt::format(".SS {}\n{}{}", roff(below->usage()), body_of(*below), notes_of(*below));
    }
  }
  out += ".SH EXIT STATUS\n" + roff(exit_statuses()) + "\n";
  if (whole) {
    out +=
        ".SH ENVIRONMENT\n"
        ".TP\n\\fBSTILLMAP_DRIVER\\fR\ncuda, host, or the path of a driver library\n"
        ".TP\n\\fBSTILLMAP_HOSTCUDA\\fR\nwhere hostcuda is\n"
        ".TP\n\\fBHOSTCUDA\\fR\nwhich machine hostcuda plays\n"
        ".TP\n\\fBSTILLMAP_VERBOSE\\fR\nset: says which drivers were tried\n";
  }
  return out;
}

}  // namespace stillmap::tool
