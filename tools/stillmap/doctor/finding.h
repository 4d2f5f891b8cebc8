// What the doctor says of one thing: whether it works here, why not, and what helps.
#pragma once

#include <string>

namespace stillmap::tool {

enum class works { yes, limited, no };

struct finding {
  std::string key;   // for programs
  std::string name;  // for people
  works does = works::yes;
  std::string says;  // what it is, or what its absence means
  std::string fix;   // what helps; empty: nothing has to, or nothing does
};

}  // namespace stillmap::tool
