#include "tools/stillmap/common/terminal.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>

namespace stillmap::tool {
namespace {

bool set(const char *variable) {
  const char *value = ::secure_getenv(variable);
  return value != nullptr && *value != '\0';
}

int width_of(int fd, bool tty) {
  winsize size = {};
  if (tty && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) return size.ws_col;
  if (set("COLUMNS")) return std::atoi(::secure_getenv("COLUMNS"));
  return 80;
}

bool locale_is_utf8() {
  // Only the characters: numbers keep their points.
  static const bool utf8 = [] {
    std::setlocale(LC_CTYPE, "");
    return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
  }();
  return utf8;
}

}  // namespace

terminal terminal_of(std::FILE *stream) {
  terminal t;
  const int fd = ::fileno(stream);
  t.tty = ::isatty(fd) != 0;
  const char *kind = ::secure_getenv("TERM");
  t.colour = t.tty && !set("NO_COLOR") && kind != nullptr && std::strcmp(kind, "dumb") != 0;
  t.utf8 = locale_is_utf8();
  t.width = std::clamp(width_of(fd, t.tty), 40, 200);
  return t;
}

}  // namespace stillmap::tool
