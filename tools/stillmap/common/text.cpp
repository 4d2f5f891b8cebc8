#include "tools/stillmap/common/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "tools/stillmap/common/size.h"

namespace stillmap::tool {

std::vector<std::string> split(const std::string &text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::string join(const std::vector<std::string> &words, const std::string &between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::string first_columns(const std::string &text, std::size_t columns) {
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    const bool begins = (static_cast<unsigned char>(text[bytes]) & 0xC0) != 0x80;
    if (begins && columns-- == 0) break;
  }
  return text.substr(0, bytes);
}

bool is_number(const std::string &text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::string shell_quoted(const std::string &text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string wrap(const std::string &text, std::size_t indent, std::size_t width) {
  std::string out;
  for (const std::string &line : split(text, '\n')) {
    if (!out.empty()) out += '\n' + std::string(indent, ' ');
    std::size_t column = indent;
    for (const std::string &word : split(line, ' ')) {
      if (column > indent && column + 1 + word.size() > width) {
        out += '\n' + std::string(indent, ' ');
        column = indent;
      } else if (column > indent) {
        out += ' ';
        ++column;
      }
      out += word;
      column += word.size();
    }
  }
  return out;
}

std::string utc_text(std::uint64_t ns) {
  const auto seconds = static_cast<std::time_t>(ns / 1'000'000'000);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(seconds));
}

std::string counted(std::uint64_t n, const char *thing) {
  return format_count(n) + ' ' + thing + (n == 1 ? "" : "s");
}

}  // namespace stillmap::tool
