// Properties of the terminal, or file, that output goes to.
#pragma once

#include <cstdio>

namespace stillmap::tool {

struct terminal {
  bool tty = false;
  bool colour = false;  // a terminal, and NO_COLOR is not set
  bool utf8 = false;    // the locale says so
  int width = 80;       // columns; of a terminal, else COLUMNS, else 80
};

// Sets the locale of the environment, once.
terminal terminal_of(std::FILE *stream);

}  // namespace stillmap::tool
