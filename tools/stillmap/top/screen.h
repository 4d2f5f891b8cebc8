// `stillmap top` in a terminal, until it is left.
#pragma once

#include "tools/stillmap/top/top_command.h"

namespace stillmap::tool {

// Requires: standard input and output are a terminal.
// Errors:   exit_refused (the terminal is not known to ncurses), those of machine_watch::look at the first look.
outcome<exit_status> show_screen(const top_options &o);

}  // namespace stillmap::tool
