#include "tools/stillmap/map/ops_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <sstream>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"

namespace stillmap::tool {
namespace {

// The arguments of an operation: n name, m other name, o offset, s size, t offset in the other, x
// times. Capital letters are optional.
struct grammar {
  verb what;
  const char *word;
  const char *parts;
  const char *usage;
};
constexpr std::array<grammar, 11> operations = {{
    {verb::grow, "grow", "ns", "grow NAME SIZE"},
    {verb::shrink, "shrink", "nS", "shrink NAME [SIZE]"},
    {verb::commit, "commit", "nos", "commit NAME OFFSET SIZE"},
    {verb::decommit, "decommit", "nos", "decommit NAME OFFSET SIZE"},
    {verb::alias, "alias", "nosmX", "alias NAME OFFSET SIZE NEW [TIMES]"},
    {verb::fork, "fork", "nm", "fork NAME NEW"},
    {verb::write, "write", "nos", "write NAME OFFSET SIZE"},
    {verb::splice, "splice", "nosmt", "splice FROM OFFSET SIZE TO OFFSET"},
    {verb::drop, "drop", "n", "drop NAME"},
    {verb::hold, "hold", "", "hold"},
    {verb::release, "release", "", "release"},
}};

bool is_name(const std::string &word) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  };
  return std::isalpha(static_cast<unsigned char>(word.front())) != 0 && word.size() <= 40 &&
         std::all_of(word.begin(), word.end(), fits);
}

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

tl::unexpected<failure> wrong(const operation &op, const std::string &trouble) {
  return fail(exit_usage, at_operation(op, trouble));
}

outcome<void> take(operation &op, char part, const std::string &word) {
  if (part == 'n' || part == 'm') {
    if (!is_name(word)) {
      return wrong(op,
                   fmt::format("'{}' is not a name (a letter, then letters, digits, _ - .)", word));
    }
    (part == 'n' ? op.name : op.other) = word;
    return {};
  }
  if (part == 'X') {
    const bool digit = word.size() == 1 && word[0] >= '1' && word[0] <= '9';
    if (!digit) return wrong(op, fmt::format("'{}' is not a number of times from 1 to 9", word));
    op.times = static_cast<std::uint64_t>(word[0] - '0');
    return {};
  }
  const auto size = parse_size(word);
  if (!size) return wrong(op, size.error().line);
  (part == 'o' ? op.offset : part == 't' ? op.to_offset : op.size) = *size;
  return {};
}

outcome<void> parse_one(operation &op) {
  std::istringstream text(op.text);
  const std::vector<std::string> words(std::istream_iterator<std::string>(text), {});
  const auto found = std::find_if(operations.begin(), operations.end(),
                                  [&](const grammar &g) { return words.front() == g.word; });
  if (found == operations.end()) {
    std::string known;
    for (const grammar &g : operations) known += (known.empty() ? "" : ", ") + std::string(g.word);
    return wrong(op, fmt::format("there is no operation '{}'; there are {}", words.front(), known));
  }
  op.what = found->what;
  const std::string_view parts = found->parts;
  const auto needed = static_cast<std::size_t>(
      std::count_if(parts.begin(), parts.end(), [](char c) { return std::islower(c) != 0; }));
  const std::size_t given = words.size() - 1;
  if (given < needed || given > parts.size()) {
    return wrong(op, fmt::format("the form is: {}", found->usage));
  }
  for (std::size_t i = 0; i < given; ++i) {
    STILLMAP_RETURN_IF_ERROR(take(op, parts[i], words[i + 1]));
  }
  return {};
}

}  // namespace

std::string at_operation(const operation &op, const std::string &trouble) {
  return fmt::format("line {}, column {}: '{}': {}", op.line, op.column, op.text, trouble);
}

outcome<std::vector<operation>> parse_operations(std::string_view script) {
  std::vector<operation> out;
  operation op;
  std::size_t line = 1, column = 1;
  bool comment = false;
  const auto finish = [&]() -> outcome<void> {
    while (!op.text.empty() && is_space(op.text.back())) op.text.pop_back();
    if (!op.text.empty()) {
      STILLMAP_RETURN_IF_ERROR(parse_one(op));
      out.push_back(std::move(op));
    }
    op = {};
    return {};
  };
  for (const char c : script) {
    if (c == '\n' || (c == ';' && !comment)) {
      STILLMAP_RETURN_IF_ERROR(finish());
      if (c == '\n') comment = false;
    } else if (c == '#') {
      comment = true;
    } else if (!comment) {
      if (op.text.empty() && !is_space(c)) {
        op.line = line;
        op.column = column;
      }
      if (!op.text.empty() || !is_space(c)) op.text += c;
    }
    column = c == '\n' ? 1 : column + 1;
    if (c == '\n') ++line;
  }
  STILLMAP_RETURN_IF_ERROR(finish());
  return out;
}

}  // namespace stillmap::tool
