// Writes Python's pickle format, protocol 2: dictionaries, lists, texts, whole numbers, booleans.
// No object, no import, nothing to call. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stillmap {

// The caller balances begin and end. Texts that come again are written once.
class pickle_writer {
 public:
  pickle_writer() { out_ = "\x80\x02"; }

  pickle_writer &begin_dict();  // then key, value, key, value ...
  pickle_writer &end_dict();
  pickle_writer &begin_list();
  pickle_writer &end_list();
  pickle_writer &add(std::string_view text);
  pickle_writer &add(const char *text) { return add(std::string_view(text)); }
  pickle_writer &add(std::uint64_t number);
  pickle_writer &add(bool value);
  pickle_writer &add_pair(std::uint64_t first, std::uint64_t second);  // a tuple

  // The value just finished can be had again.
  std::uint32_t remember();
  pickle_writer &again(std::uint32_t remembered);

  // In a list or dictionary: call after each element or pair. Readers that put all of a batch on a
  // stack are spared long ones.
  pickle_writer &next();

  std::string take();

 private:
  void number_in(std::uint64_t value, unsigned bytes);
  std::string out_;
  struct level {
    char closes;           // the opcode that takes what is after the mark
    unsigned pending = 0;  // elements since then
  };
  std::vector<level> open_;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::uint32_t remembered_ = 0;
};

}  // namespace stillmap
