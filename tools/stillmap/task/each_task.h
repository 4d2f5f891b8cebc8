// A request to several tasks at once, which all of them carry out, or none.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// What is asked of each task: to suspend memory that is mapped, or to resume what is suspended.
struct tag_request {
  bool suspends = true;
  control::suspend_request memory{.all = true};  // of a resume: its tag, or all
  bool store_is_given = false;  // what is suspended elsewhere is not as it should be
};

struct answered_task {
  std::string socket;
  // Nullopt: the memory is as it should be, and `as_it_is` says how: "suspended already (pinned)".
  std::optional<checkpoint::suspended_tag> done;
  std::string as_it_is;
  std::vector<std::string> tags;  // that it had to suspend or to resume
  bool has_more_tags = false;     // than the server lists
  bool knows_tag = false;         // that was asked for; of all tags: that there are any
};

// Asks one task. Sets all of `t` but its socket.
// Errors: busy (what is suspended already is in another store than the given one), the client's.
status ask_task(const control::client &task, const tag_request &what, answered_task &t);

// Every task is asked by a thread of its own. Those that have not answered in `timeout` are given up: a request that
// has not begun by then is not carried out.
// Errors: of the first task that failed, which the line names. The others are as they were: the tags that they have
//         suspended are resumed, or the other way round, with their contents in pinned host memory; for which they
//         have `undo_timeout`. The line names those that have not said so.
outcome<std::vector<answered_task>> ask_each(const std::vector<std::string> &sockets,
                                             const tag_request &what,
                                             std::chrono::milliseconds timeout,
                                             std::chrono::milliseconds undo_timeout);

// Undoes what earlier calls have done. "; what has come of it in TASKS is not known", or nothing.
std::string undo_each(const std::vector<answered_task> &done, const tag_request &what,
                      std::chrono::milliseconds timeout);

}  // namespace stillmap::tool
