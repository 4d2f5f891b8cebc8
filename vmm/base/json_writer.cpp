#include "stillmap/vmm/base/json_writer.h"

#include <charconv>
#include <cmath>

#include "stillmap/vmm/base/utf8.h"

namespace stillmap {

namespace {

constexpr double exact_integers = 9007199254740992;  // 2^53: a double has all of them up to here
constexpr int significant_digits = 9;

}  // namespace

void json_writer::quote(std::string_view plain) {
  constexpr std::string_view digits = "0123456789abcdef";
  text_ += '"';
  for (utf8::character c; !plain.empty(); plain.remove_prefix(c.bytes)) {
    c = utf8::first_of(plain);
    if (c.point == '"' || c.point == '\\') {
      text_ += '\\';
      text_ += static_cast<char>(c.point);
    } else if (utf8::is_control(c.point)) {  // all of them have at most 16 bits
      text_ += "\\u";
      for (const unsigned shift : {12u, 8u, 4u, 0u}) text_ += digits[c.point >> shift & 15];
    } else {
      utf8::append(text_, c.point);
    }
  }
  text_ += '"';
}

void json_writer::break_line() {
  text_ += '\n';
  text_.append(open_.size() * 2, ' ');
}

void json_writer::begin_member(std::string_view key) {
  if (!first_) text_ += ',';
  if (!open_.empty() && open_.back().members == layout::lines) {
    break_line();
  } else if (!first_) {
    text_ += ' ';
  }
  if (!key.empty()) {
    quote(key);
    text_ += ": ";
  }
  first_ = false;
}

json_writer &json_writer::add(std::string_view key, std::string_view value) {
  begin_member(key);
  text_ += value;
  return *this;
}

json_writer &json_writer::add_text(std::string_view key, std::string_view plain) {
  begin_member(key);
  quote(plain);
  return *this;
}

// Not by printf, which writes the decimal separator of the process's locale.
json_writer &json_writer::add_number(std::string_view key, double value) {
  if (!std::isfinite(value)) return nothing(key);
  char digits[32];
  const bool whole = value == std::floor(value) && std::fabs(value) <= exact_integers;
  const auto written =
      whole ? std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, 0)
            : std::to_chars(digits, digits + sizeof digits, value, std::chars_format::general,
                            significant_digits);
  return add(key, {digits, written.ptr});
}

json_writer &json_writer::open(std::string_view key, char bracket, layout l) {
  add(key, {&bracket, 1});
  const bool outer_on_one_line = !open_.empty() && open_.back().members == layout::one_line;
  open_.push_back({bracket == '{' ? '}' : ']', outer_on_one_line ? layout::one_line : l});
  first_ = true;
  return *this;
}

json_writer &json_writer::end() {
  const container closed = open_.back();
  open_.pop_back();
  const bool on_lines = closed.members == layout::lines;
  if (on_lines && !first_) break_line();
  text_ += closed.closing;
  first_ = false;
  if (on_lines && open_.empty()) text_ += '\n';
  return *this;
}

}  // namespace stillmap
