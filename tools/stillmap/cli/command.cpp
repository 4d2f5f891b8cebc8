#include "tools/stillmap/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

bool is_literal(const std::string &word) {
  return !word.empty() && std::none_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isupper(c) != 0 || (std::isalnum(c) == 0 && c != '-');
  });
}

// Values in upper case that are not paths.
bool is_other_value(const std::string &word) {
  static const std::vector<std::string> others{"N",    "SIZE", "SECONDS", "TAG",   "NAME",
                                               "TEXT", "OPS",  "COMMAND", "SPEED", "ADDRESS",
                                               "HEX",  "MS",   "VAR",     "FILTER"};
  return std::find(others.begin(), others.end(), word) != others.end();
}

}  // namespace

std::vector<std::string> option::choices() const {
  std::vector<std::string> out = split(value, '|');
  std::erase_if(out, [](const std::string &word) { return !is_literal(word); });
  return out;
}

bool option::takes_path() const {
  const auto parts = split(value, '|');
  return std::any_of(parts.begin(), parts.end(), [](const std::string &part) {
    return !part.empty() && !is_literal(part) && !is_other_value(part);
  });
}

command &command::add(const std::string &name, const std::string &what) {
  command &c = commands.emplace_back(what);
  c.words = words;
  c.words.push_back(name);
  return c;
}

option &command::add_option(const std::string &names, const std::string &value,
                            const std::string &what,
                            std::function<std::string(const std::string &)> set) {
  option &o = (names.empty() ? positionals : options).emplace_back();
  if (!names.empty()) o.names = split(names, ',');
  o.value = value;
  o.help = what;
  o.set = std::move(set);
  return o;
}

option &command::flag(const std::string &names, bool &into, const std::string &what, bool to) {
  return add_option(names, "", what, [&into, to](const std::string &) {
    into = to;
    return "";
  });
}

option &command::text(const std::string &names, std::string &into, const std::string &value,
                      const std::string &what) {
  const auto allowed = split(value, '|');
  const bool closed = std::all_of(allowed.begin(), allowed.end(), is_literal);
  return add_option(names, value, what, [&into, allowed, closed](const std::string &text) {
    if (closed && std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
      return fmt::format("'{}' is not one of {}{}", text, join(allowed, ", "),
                         suggestion(nearest(text, allowed)));
    }
    into = text;
    return std::string();
  });
}

option &command::texts(const std::string &names, std::vector<std::string> &into,
                       const std::string &value, const std::string &what) {
  option &o = add_option(names, value, what, [&into](const std::string &text) {
    into.push_back(text);
    return "";
  });
  o.is_repeated = true;
  return o;
}

template <class Number>
option &command::number(const std::string &names, Number &into, Number low, Number high,
                        const std::string &value, const std::string &what) {
  return add_option(names, value, what, [&into, low, high](const std::string &text) {
    Number n{};
    const char *const end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, n);
    if (code != std::errc() || stop != end || !(n >= low && n <= high)) {
      return fmt::format("'{}' is not a number from {} to {}", text, low, high);
    }
    into = n;
    return std::string();
  });
}
template option &command::number(const std::string &, int &, int, int, const std::string &,
                                 const std::string &);
template option &command::number(const std::string &, unsigned &, unsigned, unsigned,
                                 const std::string &, const std::string &);
template option &command::number(const std::string &, std::uint64_t &, std::uint64_t, std::uint64_t,
                                 const std::string &, const std::string &);
template option &command::number(const std::string &, double &, double, double, const std::string &,
                                 const std::string &);

option &command::size(const std::string &names, std::uint64_t &into, const std::string &what) {
  return add_option(names, "SIZE", what, [&into](const std::string &text) {
    const auto bytes = parse_size(text);
    if (bytes) into = *bytes;
    return bytes ? "" : bytes.error().line;
  });
}

std::string command::name(char between) const {
  return join(words, std::string(1, between));
}

std::string command::summary() const {
  std::string out = help.substr(0, help.find(". "));
  if (out.ends_with('.')) out.pop_back();
  return out;
}

std::string command::usage() const {
  std::string out = words.empty() ? "stillmap" : "stillmap " + name();
  if (!options.empty()) out += " [OPTIONS]";
  for (const option &o : options) {
    if (o.is_required) out += " " + o.names.back() + " " + o.value;
  }
  for (const option &p : positionals) {
    const std::string value = p.value + (p.is_repeated ? "..." : "");
    out += p.is_required ? " " + value : " [" + value + "]";
  }
  if (!commands.empty()) out += " COMMAND ...";
  return out;
}

std::vector<const command *> command::all() const {
  std::vector<const command *> out{this};
  for (const command &below : commands) {
    const auto more = below.all();
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

std::vector<std::string> command::names_below() const {
  std::vector<std::string> out;
  for (const command &below : commands) out.push_back(below.words.back());
  return out;
}

}  // namespace stillmap::tool
