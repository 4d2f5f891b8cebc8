#include "tools/stillmap/common/json.h"

#include <fmt/format.h>

#include <cmath>

namespace stillmap::tool {

void json_writer::quote(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      text_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

void json_writer::begin_value(std::string_view key) {
  if (!first_) text_ += ',';
  if (!open_.empty()) text_ += '\n' + std::string(open_.size() * 2, ' ');
  first_ = false;
  if (key.empty()) return;
  quote(key);
  text_ += ": ";
}

json_writer &json_writer::open(std::string_view key, char bracket) {
  begin_value(key);
  text_ += bracket;
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

json_writer &json_writer::field(std::string_view key, std::string_view text) {
  begin_value(key);
  quote(text);
  return *this;
}

json_writer &json_writer::field(std::string_view key, bool value) {
  begin_value(key);
  text_ += value ? "true" : "false";
  return *this;
}

json_writer &json_writer::field(std::string_view key, std::uint64_t value) {
  begin_value(key);
  text_ += std::to_string(value);
  return *this;
}

json_writer &json_writer::field(std::string_view key, int value) {
  begin_value(key);
  text_ += std::to_string(value);
  return *this;
}

json_writer &json_writer::field(std::string_view key, double value) {
  if (!std::isfinite(value)) return nothing(key);
  begin_value(key);
  text_ += fmt::format("{:.9g}", value);
  return *this;
}

json_writer &json_writer::nothing(std::string_view key) {
  begin_value(key);
  text_ += "null";
  return *this;
}

}  // namespace stillmap::tool
