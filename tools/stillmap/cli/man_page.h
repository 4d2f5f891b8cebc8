// The manual, in the language of man(7).
#pragma once

#include <string>

#include "tools/stillmap/cli/app_tree.h"

namespace stillmap::tool {

// Of one command and what is below it; of the root: of all of them.
std::string man_page(const command_info &c);

}  // namespace stillmap::tool
