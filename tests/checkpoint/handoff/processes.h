// Givers and takers in processes of their own: the same program again, told by its environment what
// to be, where to meet, and at which step to die.
#pragma once

#include <sys/types.h>

#include <string>

#include "stillmap/checkpoint/handoff/handoff.h"

namespace stillmap::handoff::testing {

// What this process was started as; empty: by nobody.
std::string part();
std::string meeting_place();
// Kills this process where it was told to die.
void die_if_told(step s);

// Started with the running test's filter, so that the same fixture is set up in it.
class other_process {
 public:
  other_process(const std::string &part, const std::string &where, int dies_at = -1);
  other_process(other_process &&) = delete;
  ~other_process();
  // Waits. The last line it printed to say what it knows; "killed" where it was.
  std::string verdict();
  // Does not: the last verdict, once it is `wanted`, or after a while.
  std::string verdict_so_far(const std::string &wanted);
  // The same, once it begins so.
  std::string verdict_that_begins(const std::string &with);

 private:
  bool listen(int wait);
  std::string last_verdict() const;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string said_;
};

// For the other process: its verdict, on a line of its own, and the end.
[[noreturn]] void say_and_end(const std::string &verdict);

}  // namespace stillmap::handoff::testing
