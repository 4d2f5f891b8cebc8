// A file descriptor that a forked child does not have. A lock of an open file (flock, F_OFD_SETLK), the
// address of a socket, and the room of an unlinked file last until the last copy of the descriptor is
// closed, so a child with a copy keeps them after its parent has died. O_CLOEXEC closes it only in a
// child that executes another program.
#pragma once

#include "stillmap/vmm/base/linked_list.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap {

// Owns a descriptor, and closes it in each forked child.
// Threads: externally synchronised; fork() may run at any time.
class fork_closed_fd {
 public:
  fork_closed_fd() = default;
  // As ::open(), with O_CLOEXEC: where it fails, get() is -1 and errno says why. No fork() of another
  // thread runs meanwhile.
  static fork_closed_fd open(const char *path, int flags, unsigned mode = 0) noexcept;
  // Owns what `make` returns, which sets O_CLOEXEC; where that is negative, errno says why. No fork() of
  // another thread runs meanwhile, so `make` must not wait, and must not fork.
  template <class Make>
  static fork_closed_fd create(const Make &make) noexcept {
    fork_closed_fd out;
    {
      const lock_guard lock(forks());
      out.own(make());
    }
    return out;
  }
  // Owns an open descriptor. A child that was forked before has a copy of it.
  static fork_closed_fd adopt(int fd) noexcept;
  fork_closed_fd(fork_closed_fd &&other) noexcept;
  fork_closed_fd &operator=(fork_closed_fd &&other) noexcept;
  ~fork_closed_fd();

  // -1 in a forked child of the process that opened it, too.
  int get() const noexcept { return fd_; }
  // Gives up the ownership: the caller closes what is returned, and a child that is forked later has it.
  int release() noexcept;
  // Whether `path` still leads to this file. Somebody may have deleted or replaced it, and then a lock
  // of it keeps nobody out.
  bool is_open_at(const char *path) const noexcept;

 private:
  class registry;
  static registry &all() noexcept;
  static mutex &forks() noexcept;  // held across each fork
  // Both require that this one is empty.
  void own(int fd) noexcept STILLMAP_REQUIRES(forks());
  void take(fork_closed_fd &other) noexcept STILLMAP_REQUIRES(forks());

  int fd_ =
      -1;  // not guarded: only the owner uses it, but for a forked child, which has one thread
  // Of the registry, while fd_ is open.
  list_links<fork_closed_fd> links_ STILLMAP_GUARDED_BY(forks());
};

}  // namespace stillmap
