// Memory that came from another process and waits here for the next one.
#pragma once

#include <functional>
#include <string>

#include "stillmap/checkpoint/landed_memory.h"
#include "stillmap/control/server.h"
#include "tools/stillmap/tasks/until_told.h"

namespace stillmap::tool {

// Can be asked at `where`, by `how`, until `end` is told, or nothing of `memory` is left here.
// `ready`: when it can be asked. Where it cannot, it says so and holds the memory all the same:
// that is here and nowhere else.
void hold(const device &d, const checkpoint::landed_memory &memory, const std::string &where,
          control::server_options how, until_told &end, const std::function<void()> &ready);

}  // namespace stillmap::tool
