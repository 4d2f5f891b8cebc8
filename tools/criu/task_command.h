// The command `stillmap task`, run by a process that is a part of CRIU.
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

enum { text_bytes = 2048 };

// Runs `COMMAND task WHAT ADDRESS --all --each` for a control socket of the process (0: in this process's
// namespaces), which is given up after `seconds`. Returns whether it succeeded; `text`, of text_bytes, is what it
// printed, or why it did not run.
bool ask_task(const char *command, const char *what, pid_t pid, const char *address, long seconds,
              char *text);

long milliseconds_now(void);

// CRIU handles SIGCHLD during a restore, and would take an end of ours for one of its tasks. Returns the mask before.
sigset_t block_child_signal(void);
// In a child: none is handled, ignored or blocked.
void reset_signals(void);
