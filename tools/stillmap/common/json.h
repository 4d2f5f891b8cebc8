// Writes one JSON document in order. The caller balances begin and end.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace stillmap::tool {

class json_writer {
 public:
  json_writer &begin_object(std::string_view key = {}) { return open(key, '{'); }
  json_writer &begin_array(std::string_view key = {}) { return open(key, '['); }
  json_writer &end();  // of the innermost object or array

  // A text, a bool, a number, or an optional of them. An empty optional and a number that is not
  // finite are null.
  template <class T>
  json_writer &field(std::string_view key, const T &value) {
    if constexpr (requires { value.has_value(); }) {
      return value ? field(key, *value) : nothing(key);
    } else if constexpr (std::is_convertible_v<const T &, std::string_view>) {
      return add(key, quoted(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      return add(key, value ? "true" : "false");
    } else if constexpr (std::is_floating_point_v<T>) {
      return add(key, number(value));
    } else {
      return add(key, std::to_string(value));
    }
  }
  json_writer &nothing(std::string_view key) { return add(key, "null"); }

  const std::string &text() const { return text_; }

 private:
  static std::string quoted(std::string_view plain);
  static std::string number(double value);
  json_writer &add(std::string_view key, std::string_view value);
  json_writer &open(std::string_view key, char bracket);

  std::string text_;
  std::vector<char> open_;  // closing brackets of what is open
  bool first_ = true;       // the innermost object or array is empty
};

}  // namespace stillmap::tool
