#include "stillmap/vmm/base/fork_closed_fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "stillmap/vmm/base/undying.h"

namespace stillmap {

// The mutex is held across each fork, so the child finds the list whole.
class fork_closed_fd::registry {
 public:
  registry() noexcept {
    pthread_atfork([]() STILLMAP_ACQUIRE(forks()) { forks().lock(); },
                   []() STILLMAP_RELEASE(forks()) { forks().unlock(); },
                   []() STILLMAP_RELEASE(forks()) {
                     all().close_all();
                     forks().unlock();
                   });
  }
  mutex mutex_;  // forks()
  linked_list<fork_closed_fd, &fork_closed_fd::links_> open_ STILLMAP_GUARDED_BY(forks());

 private:
  void close_all() noexcept STILLMAP_REQUIRES(forks()) {
    while (fork_closed_fd *const f = open_.pop_front()) ::close(std::exchange(f->fd_, -1));
  }
};

fork_closed_fd::registry &fork_closed_fd::all() noexcept {
  static undying<registry> everything;  // fork handlers and destructors of statics use it
  return *everything;
}

mutex &fork_closed_fd::forks() noexcept {
  return all().mutex_;
}

void fork_closed_fd::own(int fd) noexcept {
  if (fd < 0) return;
  fd_ = fd;
  all().open_.push_back(*this);
}

fork_closed_fd fork_closed_fd::open(const char *path, int flags, unsigned mode) noexcept {
  return create([&] { return ::open(path, flags | O_CLOEXEC, mode); });
}

fork_closed_fd fork_closed_fd::adopt(int fd) noexcept {
  return create([&] { return fd; });
}

int fork_closed_fd::release() noexcept {
  const lock_guard lock(forks());
  if (fd_ >= 0) all().open_.remove(*this);
  return std::exchange(fd_, -1);
}

bool fork_closed_fd::is_open_at(const char *path) const noexcept {
  struct stat named {
  }, opened{};
  return ::lstat(path, &named) == 0 && ::fstat(fd_, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

fork_closed_fd::fork_closed_fd(fork_closed_fd &&other) noexcept {
  const lock_guard lock(forks());
  take(other);
}

fork_closed_fd &fork_closed_fd::operator=(fork_closed_fd &&other) noexcept {
  if (this == &other) return *this;
  const lock_guard lock(forks());
  if (fd_ >= 0) {
    all().open_.remove(*this);
    ::close(fd_);
  }
  fd_ = -1;
  take(other);
  return *this;
}

fork_closed_fd::~fork_closed_fd() {
  const lock_guard lock(forks());
  if (fd_ < 0) return;
  all().open_.remove(*this);
  ::close(fd_);
}

void fork_closed_fd::take(fork_closed_fd &other) noexcept {
  if (other.fd_ < 0) return;
  all().open_.remove(other);
  fd_ = std::exchange(other.fd_, -1);
  all().open_.push_back(*this);
}

}  // namespace stillmap
