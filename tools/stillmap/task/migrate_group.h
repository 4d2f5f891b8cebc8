// Migrations of several tasks as one group: all of them move, or none.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/migration/group.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct group_task {
  std::string socket;
  control::migrate_request request;  // without its group
};

struct moved_task {
  std::string socket;
  result<migration::sent_memory> sent;
  bool answered = false;  // no: its process stands still, or does not come to an end

  bool has_moved() const { return sent && sent->owner == migration::owner::destination; }
  bool is_in_doubt() const { return sent && sent->owner == migration::owner::in_doubt; }
};

struct moved_group {
  std::vector<moved_task> tasks;
  // A commit was asked for, and has been made, or whether it was is not known: no task stays at its source.
  bool may_have_moved = false;
};

// "host:4711-4714,other:4711" as five addresses. Errors: exit_usage.
outcome<std::vector<std::string>> receivers_of(const std::string &text);

// Asks each task, by a thread of its own, to migrate with the others, and decides for all: they stop once all can be
// stopped, and move once the intents of all are on record. The decider keeps the group's state.
// `within`: until when all can be stopped, and again until when what is in doubt is asked for.
// Ensures: all of them have moved, or none has; or some are in doubt, or have ended or not answered after a commit was
//          asked for.
// Errors:  nothing was asked of the tasks.
outcome<moved_group> migrate_group(const std::vector<group_task> &tasks,
                                   migration::transport &decider, std::chrono::milliseconds within,
                                   bool silent);

}  // namespace stillmap::tool
