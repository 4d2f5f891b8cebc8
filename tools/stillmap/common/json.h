// Writes one JSON document in order. The caller balances begin and end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stillmap::tool {

class json_writer {
 public:
  json_writer &begin_object(std::string_view key = {}) { return open(key, '{'); }
  json_writer &begin_array(std::string_view key = {}) { return open(key, '['); }
  json_writer &end();  // of the innermost object or array

  json_writer &field(std::string_view key, std::string_view text);
  json_writer &field(std::string_view key, const char *text) {
    return field(key, std::string_view(text));
  }
  json_writer &field(std::string_view key, bool value);
  json_writer &field(std::string_view key, std::uint64_t value);
  json_writer &field(std::string_view key, int value);
  json_writer &field(std::string_view key, double value);
  json_writer &nothing(std::string_view key);  // null

  const std::string &text() const { return text_; }

 private:
  json_writer &open(std::string_view key, char bracket);
  void begin_value(std::string_view key);
  void quote(std::string_view text);

  std::string text_;
  std::vector<char> open_;  // closing brackets of what is open
  bool first_ = true;       // the innermost object or array is empty
};

}  // namespace stillmap::tool
