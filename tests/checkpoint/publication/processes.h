// Publishers, holders and readers in processes of their own, on one simulated machine: this program again, with
// environment variables for its role and the step at which it kills itself.
#pragma once

#include <sys/types.h>

#include <string>

namespace stillmap::publication::testing {

// Of this process; empty in the test itself.
std::string role();
// The socket of the holder.
std::string meeting_place();
// Kills this process if it was started to die at the step of this name.
void die_if_told(const char *step);
// In the other process: prints a line for the test.
void say(const std::string &line);
// Says it and ends the process, without cleaning up.
[[noreturn]] void say_and_end(const std::string &line);
// In the other process: waits until the test kills it.
[[noreturn]] void wait_for_end();

class peer_process {
 public:
  // Started with the filter of the running test, so that it sets up the same fixture. `machine`: the name that all
  // processes of a test share.
  peer_process(const std::string &role, const std::string &place, const std::string &machine,
               const std::string &dies_at = "");
  peer_process(const peer_process &) = delete;
  ~peer_process();  // kills it
  void kill();
  void stop();    // SIGSTOP
  void resume();  // SIGCONT
  pid_t pid() const { return pid_; }
  // The next line that it says; "killed" or "ended" if it is over, "silent" after a minute.
  std::string line();

 private:
  int output_ = -1;
  pid_t pid_ = -1;
  std::string said_;
};

}  // namespace stillmap::publication::testing
