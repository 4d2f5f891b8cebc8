#include "stillmap/checkpoint/image/internal/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "stillmap/checkpoint/image/internal/image_error.h"

namespace stillmap::image {
namespace {

constexpr const char *lock_name = ".set.lock";
// Of removals by other writers, each between the opening and the locking of the file.
constexpr int max_attempts = 100;

bool is_unsupported(int r) {
  return r == -EOPNOTSUPP || r == -ENOLCK || r == -EINVAL || r == -EBADF;
}

}  // namespace

result<std::unique_ptr<folder_lock>> folder_lock::take(file_calls &calls, int directory,
                                                       const char *op) {
  constexpr int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    std::unique_ptr<folder_lock> lock(new folder_lock(calls, directory));
    lock->fd_ = calls.open_at(directory, lock_name, flags, 0600);
    if (lock->fd_ < 0) {
      return make_system_error(-lock->fd_, op, "cannot open the lock file of the folder",
                               lock_name);
    }
    const int r = calls.lock(lock->fd_);
    if (r == -EWOULDBLOCK) break;
    lock->locked_ = r >= 0;
    if (lock->locked_ && !calls.leads_to(directory, lock_name, lock->fd_)) continue;
    lock->remove_ = true;  // where it cannot be locked, nobody else has locked it either
    if (lock->locked_ || is_unsupported(r)) return lock;
    return make_system_error(-r, op, "cannot lock the folder", lock_name);
  }
  return image_error(errc::busy, op, "another process is writing a set into this folder", part::set,
                     0);
}

folder_lock::~folder_lock() {
  // While it is still locked: afterwards the name is another writer's.
  if (remove_ && process_.is_current()) (void)calls_.unlink_at(directory_, lock_name);
  if (fd_ >= 0) calls_.close(fd_);
}

}  // namespace stillmap::image
