#include "tools/stillmap/common/json.h"

#include <fmt/format.h>

#include <cmath>

namespace stillmap::tool {

std::string json_writer::quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string json_writer::number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

json_writer &json_writer::add(std::string_view key, std::string_view value) {
  if (!first_) text_ += ',';
  if (!open_.empty()) text_ += '\n' + std::string(open_.size() * 2, ' ');
  if (!key.empty()) text_ += quoted(key) + ": ";
  text_ += value;
  first_ = false;
  return *this;
}

json_writer &json_writer::open(std::string_view key, char bracket) {
  add(key, {&bracket, 1});
  open_.push_back(bracket == '{' ? '}' : ']');
  first_ = true;
  return *this;
}

json_writer &json_writer::end() {
  const char bracket = open_.back();
  open_.pop_back();
  if (!first_) text_ += '\n' + std::string(open_.size() * 2, ' ');
  text_ += bracket;
  first_ = false;
  if (open_.empty()) text_ += '\n';
  return *this;
}

}  // namespace stillmap::tool
