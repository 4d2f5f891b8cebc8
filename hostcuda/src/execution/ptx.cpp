#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "hostcuda/src/execution/image.h"

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

std::size_t number(std::string_view digits) {
  return std::strtoull(std::string(digits).c_str(), nullptr, 10);
}

// Bytes of a type such as .u64, .f32 or .bf16x2; 0 for a directive that is no type.
std::size_t type_bytes(std::string_view word) {
  constexpr std::string_view prefixes[] = {".u", ".s", ".b", ".f", ".bf"};
  for (const std::string_view prefix : prefixes) {
    if (!word.starts_with(prefix)) continue;
    const std::string_view rest = word.substr(prefix.size());
    const std::size_t end = rest.find_first_not_of("0123456789");
    const std::size_t bits = number(rest.substr(0, end));
    if (bits < 8 || bits > 128) continue;
    if (end == rest.npos) return bits / 8;
    if (rest.substr(end) == "x2") return bits / 4;
  }
  return 0;
}

struct declared_param {
  std::size_t bytes = 0;
  std::size_t alignment = 0;
};

// One parameter: `.param .u64 .ptr .global .align 8 name` or `.param .align 4 .b8 name[12]`. The
// alignment after .ptr is that of the memory pointed to.
declared_param parse_param(std::string_view text) {
  declared_param p;
  bool points = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '[') {
      p.bytes *= number(text.substr(i + 1));
      i = text.find(']', i);
      if (i == text.npos) break;
    }
    if (text[i] != '.') {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < text.size() && is_name(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    i = end;
    if (word == ".ptr") {
      points = true;
    } else if (word == ".align" && !points) {
      p.alignment = number(text.substr(std::min(text.find_first_of("0123456789", i), text.size())));
    } else if (const std::size_t bytes = type_bytes(word); bytes != 0 && p.bytes == 0) {
      p.bytes = bytes;
      p.alignment = std::max(p.alignment, bytes);
    }
  }
  return p;
}

// The parameters between the parentheses at the beginning of `text`.
std::vector<kernel_param> parse_params(std::string_view text) {
  std::vector<kernel_param> out;
  if (!text.starts_with('(')) return out;
  const std::size_t close = std::min(text.find(')'), text.size());
  std::size_t offset = 0;
  for (std::size_t at = 1; at < close;) {
    const std::size_t end = std::min(text.find(',', at), close);
    const declared_param p = parse_param(text.substr(at, end - at));
    at = end + 1;
    if (p.bytes == 0 || p.alignment == 0) continue;
    offset = (offset + p.alignment - 1) / p.alignment * p.alignment;
    out.push_back({offset, p.bytes});
    offset += p.bytes;
  }
  return out;
}

}  // namespace

std::vector<image_kernel> ptx_entries(std::string_view raw) {
  const std::string text = without_comments(raw);
  constexpr std::string_view word = ".entry";
  std::vector<image_kernel> kernels;
  const auto skip_space = [&](std::size_t at) {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) ++at;
    return at;
  };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at)) {
    at += word.size();
    if (at < text.size() && is_name(text[at])) continue;  // .entrySomething
    const std::size_t begin = at = skip_space(at);
    while (at < text.size() && is_name(text[at])) ++at;
    if (at == begin) continue;
    kernels.push_back({text.substr(begin, at - begin),
                       parse_params(std::string_view(text).substr(skip_space(at))),
                       {}});
  }
  return kernels;
}

}  // namespace hostcuda
