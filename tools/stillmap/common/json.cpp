#include "tools/stillmap/common/json.h"

#include <fmt/format.h>

#include <cmath>

#include "stillmap/allocators/report/internal/text_out.h"

namespace stillmap::tool {

std::string json_writer::quoted(std::string_view plain) {
  return text::json(plain);
}

std::string json_writer::number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

json_writer &json_writer::add(std::string_view key, std::string_view value) {
  if (!first_) text_ += ',';
  if (!open_.empty()) text_ += '\n' + std::string(open_.size() * 2, ' ');
  if (!key.empty()) text_ += text::json(key) + ": ";
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
