// The commands and their options as plain data, read from what parses them: what is generated from
// it cannot be out of date.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace stillmap::tool {

struct option_info {
  std::vector<std::string> names;  // "-o", "--output"; of a positional: none
  std::string value;               // "IMAGE", "none|lz4"; empty: a flag
  std::vector<std::string> choices;
  bool is_path = false;  // the value may be one
  bool required = false, many = false;
  std::string help;
};

struct command_info {
  std::vector<std::string> words;  // "handoff", "give"; of the program itself: none
  std::string help, footer;
  std::vector<option_info> options, positionals;
  std::vector<command_info> commands;

  std::string name(char between = ' ') const;
  std::string summary() const;  // the first sentence of `help`
  // "stillmap snapshot [OPTIONS] SOCKET", as a usage line says it.
  std::string usage() const;
};

command_info tree_of(const CLI::App &app);

// Itself and all below, in order.
std::vector<const command_info *> all_of(const command_info &c);

// Text in one line.
std::string one_line(const std::string &text);

}  // namespace stillmap::tool
