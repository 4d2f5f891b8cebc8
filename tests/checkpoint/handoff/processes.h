// Senders and receivers in processes of their own: this program again, with environment variables
// for its role, its socket, and the step at which it kills itself.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "stillmap/checkpoint/handoff/handoff.h"

namespace stillmap::handoff::testing {

// The role of this process; empty in the test itself.
std::string part();
std::string meeting_place();
// Whether this process was started to die at this step; kills it there.
bool is_told_to_die(step s);
void die_if_told(step s);

// Adds a line to the file that STILLMAP_MODEL_EVENTS names, if it does: what happened, and at which end.
// tools/check/models.py reads it.
void note_event(const std::string &what, const std::string &end = "");

// Started with the filter of the running test, so that it sets up the same fixture.
class other_process {
 public:
  other_process(const std::string &part, const std::string &where, int dies_at = -1);
  other_process(other_process &&) = delete;
  ~other_process();
  // Waits for its end. Returns its last verdict, or "killed".
  std::string verdict();
  // Waits until the last verdict is `wanted`, for a limited time. Returns the last verdict.
  std::string verdict_so_far(const std::string &wanted);
  // The same for a verdict that begins with `with`.
  std::string verdict_that_begins(const std::string &with);
  // What it said of a round by say(); another verdict if that does not come.
  std::string said(std::size_t round);
  // Whether its last verdict so far is this one.
  bool has_said(const std::string &what);

 private:
  bool listen(int wait);
  std::string last_verdict() const;
  int output_ = -1;
  pid_t pid_ = -1;
  std::string said_;
};

// In the other process: prints the verdict on a round, and goes on.
void say(std::size_t round, const std::string &what);
// In the other process: prints the verdict and ends the process.
[[noreturn]] void say_and_end(const std::string &verdict);

}  // namespace stillmap::handoff::testing
