#include "bench/support/other_process.h"

#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

namespace stillmap::bench {

other_process::other_process(std::vector<std::string> settings) {
  // The first value of a name counts. Memory is allocated before the fork, since after it other
  // threads may hold the allocator's lock.
  std::vector<char *> environment;
  for (std::string &s : settings) environment.push_back(s.data());
  for (char **e = environ; *e != nullptr; ++e) environment.push_back(*e);
  environment.push_back(nullptr);
  char self[] = "/proc/self/exe";
  char *arguments[] = {self, nullptr};
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::execve(self, arguments, environment.data());
  ::_exit(127);
}

bool other_process::ended_well() {
  if (pid_ < 0) return false;
  int how = 0;
  ::waitpid(pid_, &how, 0);
  pid_ = -1;
  return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

}  // namespace stillmap::bench
