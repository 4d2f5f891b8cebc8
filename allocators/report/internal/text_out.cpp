#include "stillmap/allocators/report/internal/text_out.h"

#include <cstdarg>
#include <cstdio>

namespace stillmap::text {

void print(std::string &out, const char *format, ...) {
  std::va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  char small[256];
  const int length = std::vsnprintf(small, sizeof(small), format, arguments);
  va_end(arguments);
  if (length >= 0 && static_cast<std::size_t>(length) < sizeof(small)) {
    out.append(small, static_cast<std::size_t>(length));
  } else if (length >= 0) {
    const std::size_t before = out.size();
    out.resize(before + static_cast<std::size_t>(length) + 1);
    std::vsnprintf(out.data() + before, static_cast<std::size_t>(length) + 1, format, again);
    out.pop_back();
  }
  va_end(again);
}

std::string hex(std::uint64_t address) {
  std::string out;
  print(out, "0x%llx", static_cast<unsigned long long>(address));
  return out;
}

std::string name_of(stream_ref stream) {
  const std::uint64_t handle = handle_of(stream);
  return handle == 0 ? "the default stream" : "stream " + hex(handle);
}

std::string xml(std::string_view plain) {
  std::string out;
  for (const char c : plain) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      // XML does not allow control characters.
      out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return out;
}

std::string json(std::string_view plain) {
  std::string out = "\"";
  for (const char c : plain) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      print(out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace stillmap::text
