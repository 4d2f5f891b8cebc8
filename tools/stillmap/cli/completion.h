// What shells need to complete the command line of `stillmap`.
#pragma once

#include <string>

#include "tools/stillmap/cli/app_tree.h"

namespace stillmap::tool {

std::string bash_completion(const command_info &root);
std::string zsh_completion(const command_info &root);
std::string fish_completion(const command_info &root);

}  // namespace stillmap::tool
