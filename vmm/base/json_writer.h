// The one writer of JSON (RFC 8259). Internal. Allocates host memory: may throw std::bad_alloc.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace stillmap {

// Writes one document in order. The caller balances begin and end. Texts become valid UTF-8, with
// U+FFFD for each byte that belongs to no character; control characters are escaped, because the
// document may be printed to a terminal.
class json_writer {
 public:
  // Each member is on a line of its own, and a document ends with a line break. In an array keys are
  // empty; in an object none is.
  json_writer &begin_object(std::string_view key = {}) { return open(key, '{', layout::lines); }
  json_writer &begin_array(std::string_view key = {}) { return open(key, '[', layout::lines); }
  // An object on one line, with all that is in it.
  json_writer &begin_record(std::string_view key = {}) { return open(key, '{', layout::one_line); }
  json_writer &end();  // of the innermost object or array

  // A text, a bool, a number, or an optional of them. An empty optional and a number that is not
  // finite are null. Of a fraction nine digits are written.
  template <class T>
  json_writer &field(std::string_view key, const T &value) {
    if constexpr (requires { value.has_value(); }) {
      return value ? field(key, *value) : nothing(key);
    } else if constexpr (std::is_convertible_v<const T &, std::string_view>) {
      return add_text(key, value);
    } else if constexpr (std::is_same_v<T, bool>) {
      return add(key, value ? "true" : "false");
    } else if constexpr (std::is_floating_point_v<T>) {
      return add_number(key, value);
    } else {
      return add(key, std::to_string(value));
    }
  }
  json_writer &nothing(std::string_view key) { return add(key, "null"); }
  // A member of an array.
  template <class T>
  json_writer &element(const T &value) {
    return field({}, value);
  }

  const std::string &text() const & { return text_; }
  std::string text() && { return std::move(text_); }

 private:
  enum class layout : unsigned char { lines, one_line };
  struct container {
    char closing;
    layout members;
  };

  json_writer &open(std::string_view key, char bracket, layout l);
  json_writer &add(std::string_view key, std::string_view value);
  json_writer &add_text(std::string_view key, std::string_view plain);
  json_writer &add_number(std::string_view key, double value);
  void begin_member(std::string_view key);
  void break_line();
  void quote(std::string_view plain);

  std::string text_;
  std::vector<container> open_;
  bool first_ = true;  // the innermost object or array is empty
};

}  // namespace stillmap
