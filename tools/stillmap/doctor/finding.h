// One finding of the doctor: whether a feature works here, why not, and the fix.
#pragma once

#include <string>

namespace stillmap::tool {

enum class works { yes, limited, no };

struct finding {
  std::string key;   // for programs
  std::string name;  // for people
  works does = works::yes;
  std::string says;  // the fact, or the consequence of its absence
  std::string fix;   // the fix; empty: none is needed, or none is known
};

}  // namespace stillmap::tool
