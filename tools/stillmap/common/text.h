// Words and lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stillmap::tool {

std::vector<std::string> split(const std::string &text, char at);
std::string join(const std::vector<std::string> &words, const std::string &between);
std::string first_columns(const std::string &text,
                          std::size_t columns);     // one character: one column
bool is_number(const std::string &text);            // decimal digits, at least one
std::string shell_quoted(const std::string &text);  // one word in single quotes

// Breaks lines at spaces so that each has at most `width` columns; all but the first are indented.
// Line breaks in `text` stay. One byte counts as one column.
std::string wrap(const std::string &text, std::size_t indent, std::size_t width);

// "2026-11-29 18:00:00 UTC", of nanoseconds since 1970.
std::string utc_text(std::uint64_t ns);

// "1 page", "2 pages".
std::string counted(std::uint64_t n, const char *thing);

}  // namespace stillmap::tool
