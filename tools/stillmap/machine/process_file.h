// The files of a process in /proc.
#pragma once

#include <sys/types.h>

#include <string>

namespace stillmap::tool {

// Its first 256 KiB: an environment may be as large as a process makes it. Empty: the process has ended, or the file is
// not for this user.
std::string process_file(pid_t pid, const char *file);

// A word of /proc/PID/stat behind the name of the process: 0 is its state, 1 its parent. Empty: it has ended.
std::string stat_word(pid_t pid, int index);

}  // namespace stillmap::tool
