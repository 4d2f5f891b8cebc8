#include "tools/stillmap/cli/app_tree.h"

#include <algorithm>
#include <cctype>

namespace stillmap::tool {
namespace {

// What a value is called tells what it is: lower case, one of these words; upper case, something of
// that kind.
bool is_word(const std::string &s) {
  return !s.empty() && std::none_of(s.begin(), s.end(), [](unsigned char c) {
    return std::isupper(c) != 0 || (std::isalnum(c) == 0 && c != '-' && c != '.');
  });
}

bool is_kind_of_path(const std::string &s) {
  static const char *const others[] = {"N",       "SIZE", "SECONDS", "TAG",   "NAME",
                                       "TEXT",    "LIST", "OPS",     "COUNT", "SEED",
                                       "COMMAND", "RATE", "ADDRESS", "HEX",   "MS"};
  return !s.empty() && std::isupper(static_cast<unsigned char>(s.front())) != 0 &&
         std::find(std::begin(others), std::end(others), s) == std::end(others);
}

option_info info_of(const CLI::Option &o) {
  option_info out;
  for (const std::string &n : o.get_snames()) out.names.push_back("-" + n);
  for (const std::string &n : o.get_lnames()) out.names.push_back("--" + n);
  out.help = o.get_description();
  out.required = o.get_required();
  if (o.get_items_expected_max() == 0) return out;
  // Validators append themselves behind a colon.
  out.value = o.get_type_name().substr(0, o.get_type_name().find(':'));
  if (out.value.empty()) {
    for (const char c : o.get_name(true)) {
      out.value += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
  }
  out.many = o.get_expected_max() > 1;
  out.is_path = out.value.starts_with("--");  // a program, and what it is given
  for (std::size_t at = 0; at <= out.value.size();) {
    const std::size_t end = std::min(out.value.find('|', at), out.value.size());
    const std::string part = out.value.substr(at, end - at);
    if (is_word(part)) out.choices.push_back(part);
    out.is_path = out.is_path || is_kind_of_path(part);
    at = end + 1;
  }
  return out;
}

command_info tree_of(const CLI::App &app, std::vector<std::string> words) {
  command_info out;
  out.words = std::move(words);
  out.help = app.get_description();
  out.footer = app.get_footer();
  for (const CLI::Option *o : app.get_options()) {
    (o->get_positional() ? out.positionals : out.options).push_back(info_of(*o));
  }
  for (const CLI::App *c : app.get_subcommands([](const CLI::App *) { return true; })) {
    std::vector<std::string> below = out.words;
    below.push_back(c->get_name());
    out.commands.push_back(tree_of(*c, std::move(below)));
  }
  return out;
}

void gather(const command_info &c, std::vector<const command_info *> &into) {
  into.push_back(&c);
  for (const command_info &below : c.commands) gather(below, into);
}

}  // namespace

std::string command_info::name(char between) const {
  std::string out;
  for (const std::string &w : words) out += (out.empty() ? "" : std::string(1, between)) + w;
  return out;
}

std::string command_info::summary() const {
  std::string out = one_line(help);
  if (out.starts_with("stillmap: ")) out.erase(0, out.find(' ') + 1);
  out = out.substr(0, out.find(". "));
  if (out.ends_with('.')) out.pop_back();
  return out;
}

std::string command_info::usage() const {
  std::string out = words.empty() ? "stillmap" : "stillmap " + name();
  if (!options.empty()) out += " [OPTIONS]";
  for (const option_info &o : options) {
    if (o.required) out += " " + o.names.front() + " " + o.value;
  }
  for (const option_info &p : positionals) {
    const std::string value = p.value + (p.many ? "..." : "");
    out += p.required ? " " + value : " [" + value + "]";
  }
  if (!commands.empty()) out += " COMMAND ...";
  return out;
}

command_info tree_of(const CLI::App &app) {
  return tree_of(app, {});
}

std::vector<const command_info *> all_of(const command_info &c) {
  std::vector<const command_info *> out;
  gather(c, out);
  return out;
}

std::string one_line(const std::string &text) {
  std::string out = text;
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

}  // namespace stillmap::tool
