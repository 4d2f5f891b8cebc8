// Whether the process of a peer has ended, by a descriptor of it that the peer sent (pidfd).
#pragma once

#include <sys/types.h>

namespace stillmap::handoff {

// Whether `fd` is a pidfd of process `pid`, which lives. False also if that cannot be told: the
// process is in another PID namespace, or /proc is not mounted.
bool is_pidfd_of(int fd, pid_t pid) noexcept;

// Waits a second for the process to end, and as long as it writes a core dump: until that is
// written, its memory and descriptors are still there.
bool has_ended(int pidfd, pid_t pid) noexcept;

}  // namespace stillmap::handoff
