// Writes Python's pickle format, protocol 2: dictionaries, lists, strings, non-negative integers
// and booleans. No objects and no imports. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stillmap {

// The caller balances begin and end calls. A repeated string is written once.
class pickle_writer {
 public:
  pickle_writer() { out_ = "\x80\x02"; }

  pickle_writer &begin_dict();  // then key, value, key, value ...
  pickle_writer &end_dict();
  pickle_writer &begin_list();
  pickle_writer &end_list() { return end_dict(); }
  pickle_writer &add(std::string_view text);
  pickle_writer &add(const char *text) { return add(std::string_view(text)); }
  pickle_writer &add(std::uint64_t number);
  pickle_writer &add(bool value);
  pickle_writer &add_pair(std::uint64_t first, std::uint64_t second);  // a tuple

  // Stores the value that was just written; again() refers to it.
  std::uint32_t remember();
  pickle_writer &again(std::uint32_t remembered);

  // Call it after each list element or key-value pair. It limits the batches that readers keep on a
  // stack.
  pickle_writer &next();

  std::string take();

 private:
  void number_in(std::uint64_t value, unsigned bytes);
  std::string out_;
  struct level {
    char closes;           // the opcode that ends a batch
    unsigned pending = 0;  // elements in the current batch
  };
  std::vector<level> open_;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::uint32_t remembered_ = 0;
};

}  // namespace stillmap
