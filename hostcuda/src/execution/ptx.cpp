#include <cctype>

#include "hostcuda/src/execution/module.h"

namespace hostcuda {
namespace {

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

std::string without_comments(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i, 2) == "//") {
      i = text.find('\n', i);
      if (i == text.npos) break;
    } else if (text.substr(i, 2) == "/*") {
      i = text.find("*/", i + 2);
      if (i == text.npos) break;
      i += 2;
      out += ' ';
    } else {
      out += text[i++];
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> ptx_entries(std::string_view raw) {
  const std::string text = without_comments(raw);
  constexpr std::string_view word = ".entry";
  std::vector<std::string> names;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at)) {
    at += word.size();
    if (at < text.size() && is_name(text[at])) continue;  // .entrySomething
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) ++at;
    const std::size_t begin = at;
    while (at < text.size() && is_name(text[at])) ++at;
    if (at != begin) names.push_back(text.substr(begin, at - begin));
  }
  return names;
}

}  // namespace hostcuda
