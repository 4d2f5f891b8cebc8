// Manual pages, in the language of man(7).
#pragma once

#include <string>

#include "tools/stillmap/cli/command.h"

namespace stillmap::tool {

// "stillmap-image-verify"
std::string man_name(const command &c);
// The page of one command. That of a group, or of the program, lists the commands below it.
std::string man_page(const command &c);

}  // namespace stillmap::tool
