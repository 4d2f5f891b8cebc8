#include "stillmap/allocators/report/internal/text_out.h"

#include <cstdarg>
#include <cstdio>

#include "stillmap/vmm/base/utf8.h"

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
  for (utf8::character c; !plain.empty(); plain.remove_prefix(c.bytes)) {
    c = utf8::first_of(plain);
    if (c.point == '&') {
      out += "&amp;";
    } else if (c.point == '<') {
      out += "&lt;";
    } else if (c.point == '>') {
      out += "&gt;";
    } else if (c.point == '"') {
      out += "&quot;";
    } else {
      // XML does not allow these.
      const bool allowed =
          (c.point >= 0x20 || c.point == '\n') && c.point != 0xfffe && c.point != 0xffff;
      utf8::append(out, allowed ? c.point : U' ');
    }
  }
  return out;
}

}  // namespace stillmap::text
