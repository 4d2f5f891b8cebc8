// Completion scripts for shells.
#pragma once

#include <string>

#include "tools/stillmap/cli/command.h"

namespace stillmap::tool {

std::string bash_completion(const command &root);
std::string zsh_completion(const command &root);
std::string fish_completion(const command &root);

}  // namespace stillmap::tool
