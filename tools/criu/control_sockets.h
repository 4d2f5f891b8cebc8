// The control sockets of a process, as the kernel has them: the process may be stopped.
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { address_bytes = 256 };

// Calls `visit` with the address ("@name", or a path as the process has it) of each stream socket on which the process
// listens and whose name ends in "control", until it returns false. Returns whether it never did.
bool for_each_socket(pid_t pid, bool (*visit)(pid_t pid, const char *address, void *given),
                     void *given);
// False of a process that has ended.
bool listens(pid_t pid, const char *address);
