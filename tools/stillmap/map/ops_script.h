// The script language of stillmap map: operations on named buffers, separated by semicolons or line
// breaks. `stillmap map --help` describes each (map.cpp). Parsing is pure; scenario.h performs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

enum class verb { grow, shrink, commit, decommit, alias, fork, write, splice, drop, hold, release };

struct operation {
  verb what = verb::grow;
  std::string text;      // as written
  std::size_t line = 1;  // where it begins, from 1
  std::size_t column = 1;
  std::string name, other;  // `other`: NEW or TO
  std::uint64_t offset = 0, size = 0, to_offset = 0, times = 1;
};

// Errors: exit_usage, with the position, the operation and what is wrong with it.
outcome<std::vector<operation>> parse_operations(std::string_view script);

// "line 2, column 5: 'grow a': ..."
std::string at_operation(const operation &op, const std::string &trouble);

}  // namespace stillmap::tool
