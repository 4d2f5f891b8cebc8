// Memory that came from another process and waits here for the next one.
#pragma once

#include <functional>
#include <string>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/control/server.h"
#include "tools/stillmap/task/wait_for_signal.h"

namespace stillmap::tool {

// Can be asked at `where`, by `how`, until `end` is told, or nothing of `memory` is left here.
// `ready`: when it can be asked. Where it cannot, it says so and holds the memory all the same:
// that is here and nowhere else.
void hold(const device &d, const checkpoint::restored_memory &memory, const std::string &where,
          control::server_options how, until_told &end, const std::function<void()> &ready);

}  // namespace stillmap::tool
