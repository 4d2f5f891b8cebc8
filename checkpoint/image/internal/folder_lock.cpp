#include "stillmap/checkpoint/image/internal/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/parts.h"

namespace stillmap::image {
namespace {

constexpr const char *lock_name = ".set.lock";
// Of removals by other writers, each between the opening and the locking of the file.
constexpr int max_attempts = 100;

bool is_unsupported(int r) {
  return r == -EOPNOTSUPP || r == -ENOLCK || r == -EINVAL || r == -EBADF;
}

}  // namespace

result<std::unique_ptr<folder_lock>> folder_lock::take(checkpoint::file_system &files,
                                                       int directory) {
  constexpr int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    std::unique_ptr<folder_lock> lock(new folder_lock(files, directory));
    lock->fd_ = files.open_at(directory, lock_name, flags, 0600);
    if (lock->fd_ < 0) {
      return make_system_error(-lock->fd_, "cannot open the lock file of the folder", lock_name);
    }
    const int r = files.lock(lock->fd_);
    if (r == -EWOULDBLOCK) break;
    lock->locked_ = r >= 0;
    if (lock->locked_ && !files.leads_to(directory, lock_name, lock->fd_)) continue;
    lock->remove_ = true;  // where it cannot be locked, nobody else has locked it either
    if (lock->locked_ || is_unsupported(r)) return lock;
    return make_system_error(-r, "cannot lock the folder", lock_name);
  }
  return checkpoint::file_error(errc::busy, "another process is writing a set into this folder",
                                part::set, 0);
}

folder_lock::~folder_lock() {
  // While it is still locked: afterwards the name is another writer's.
  if (remove_ && process_.is_current()) (void)files_.unlink_at(directory_, lock_name);
  if (fd_ >= 0) files_.close(fd_);
}

}  // namespace stillmap::image
