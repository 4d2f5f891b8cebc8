// Reads Python's pickle format as data: numbers, texts, lists, tuples, dictionaries. A pickle that
// imports or calls anything is rejected; nothing is executed.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

// `large`: an integer that an int64 does not hold; its value is not kept.
enum class pickle_kind : std::uint8_t {
  none,
  boolean,
  integer,
  large,
  real,
  text,
  list,
  dict,
  mark
};

struct pickle_value {
  pickle_kind kind = pickle_kind::none;
  std::int64_t integer = 0;  // boolean, integer
  double real = 0;
  std::string_view text;                    // of the file's bytes; protocol 0: with its escapes
  std::vector<const pickle_value *> items;  // list, tuple, set; dict: key, value, key, value...

  // The value of a key; nullptr: not a dictionary, or no such key.
  const pickle_value *find(std::string_view key) const;
};

// A pickle is refused beyond these. Its values take at most 64 bytes of host memory each, and each
// operation at most 32 more.
struct pickle_options {
  std::uint64_t max_values = std::uint64_t{1} << 26;      // 4 GiB
  std::uint64_t max_operations = std::uint64_t{1} << 28;  // each is a byte at least
};

// Values are valid as long as this object and the bytes that it was read from.
class pickle {
 public:
  // Protocols 0 to 5.
  // Errors: invalid_argument: "byte N: what is wrong".
  // Cost:   proportional to the bytes.
  static result<pickle> read(std::string_view bytes, const pickle_options &options = {});
  const pickle_value &root() const { return *root_; }
  // How many there were: no more than bytes.
  std::uint64_t operations() const { return operations_; }

 private:
  friend class pickle_machine;
  std::deque<pickle_value> values_;  // flat, so that deep nesting needs no deep recursion
  const pickle_value *root_ = nullptr;
  std::uint64_t operations_ = 0;
};

}  // namespace stillmap::replay
