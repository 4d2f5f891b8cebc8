// A request to several tasks at once, which all of them carry out, or none.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Of one task; nullopt: there was nothing to do.
using task_answer = result<std::optional<checkpoint::suspended_tag>>;
using task_request = std::function<task_answer(const control::client &task)>;

struct all_or_none {
  task_request request, inverse;
  std::chrono::milliseconds timeout;  // for the request; those that have not answered are given up
};

struct answered_task {
  std::string socket;
  std::optional<checkpoint::suspended_tag> done;
};

// Every task is asked by a thread of its own. A request that has not begun when it is given up is not carried out.
// Errors: of the first task that failed, which the line names; the others have carried out the inverse, for which they
//         have the same time again, or the line names those that have not said so.
outcome<std::vector<answered_task>> ask_each(const std::vector<std::string> &sockets,
                                             const all_or_none &what);

}  // namespace stillmap::tool
