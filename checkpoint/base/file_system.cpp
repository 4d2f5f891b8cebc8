#include "stillmap/checkpoint/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "stillmap/vmm/base/file_size_limit.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/linked_list.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::checkpoint {
namespace {

template <class T>
T or_errno(T returned) {
  return returned < 0 ? -errno : returned;
}

// Repeats calls that a signal interrupted. (Not close: it releases the descriptor in any case.)
template <class Call>
auto again(const Call &call) {
  for (;;) {
    const auto r = or_errno(call());
    if (r != -EINTR) return r;
  }
}

// What open_at() has opened for writing.
// Threads: safe. Lock order, in fork() too: mutex_, then that of fork_closed_fd.
class open_files {
 public:
  struct file {
    int number = -1;
    fork_closed_fd fd;
    list_links<file> links;
  };

  static open_files &all() noexcept {
    static undying<open_files> files;  // destructors of statics close files
    return *files;
  }
  open_files() noexcept {
    (void)fork_closed_fd::adopt(-1);  // its fork handlers come first, so that they run inside these
    pthread_atfork([]() STILLMAP_ACQUIRE(all().mutex_) { all().mutex_.lock(); },
                   []() STILLMAP_RELEASE(all().mutex_) { all().mutex_.unlock(); },
                   []() STILLMAP_RELEASE(all().mutex_) { all().mutex_.unlock(); });
  }

  // A number that a forked child's copy had before the fork stays that one's. Returns the negative
  // errno where no other can be had.
  int with_own_number(int fd) noexcept {
    const lock_guard lock(mutex_);
    while (fd >= 0 && find(fd) != nullptr) {
      const int other = or_errno(::fcntl(fd, F_DUPFD_CLOEXEC, fd + 1));
      ::close(fd);
      fd = other;
    }
    return fd;
  }
  void add(std::unique_ptr<file> one, int fd) noexcept {
    one->fd = fork_closed_fd::adopt(fd);
    one->number = fd;
    const lock_guard lock(mutex_);
    files_.push_back(*one.release());
  }
  // The descriptor, which the caller closes; -1: the process that opened it forked this one.
  int take(int number) noexcept {
    const lock_guard lock(mutex_);
    const std::unique_ptr<file> found(find(number));
    if (!found) return number;  // for reading
    files_.remove(*found);
    return found->fd.release();
  }

 private:
  file *find(int number) noexcept STILLMAP_REQUIRES(mutex_) {
    for (file *f = files_.front(); f != nullptr; f = files_.after(*f)) {
      if (f->number == number) return f;
    }
    return nullptr;
  }

  mutex mutex_;
  linked_list<file, &file::links> files_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace

file_system::~file_system() = default;

file_system &file_system::system() {
  static undying<file_system> files;
  return *files;
}

int file_system::open_at(int directory, const char *name, int flags, unsigned mode) {
  std::unique_ptr<open_files::file> written;  // made before the file is
  if ((flags & O_ACCMODE) != O_RDONLY) written = std::make_unique<open_files::file>();
  int fd = again([&] { return ::openat(directory, name, flags, mode); });
  fd = open_files::all().with_own_number(fd);
  if (fd >= 0 && written) open_files::all().add(std::move(written), fd);
  return fd;
}
int file_system::close(int number) {
  const int fd = open_files::all().take(number);
  return fd < 0 ? 0 : or_errno(::close(fd));
}
long file_system::write_at(int fd, const void *from, std::size_t bytes, std::uint64_t offset) {
  if (!is_within_file_size_limit(offset + bytes)) return -EFBIG;
  return again([&] { return ::pwrite(fd, from, bytes, static_cast<off_t>(offset)); });
}
long file_system::read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset) {
  return again([&] { return ::pread(fd, to, bytes, static_cast<off_t>(offset)); });
}
int file_system::sync_data(int fd) {
  return again([&] { return ::fdatasync(fd); });
}
int file_system::sync(int fd) {
  return again([&] { return ::fsync(fd); });
}
int file_system::preallocate(int fd, std::uint64_t bytes) {
  if (!is_within_file_size_limit(bytes)) return -EFBIG;
  return again([&] { return ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)); });
}
int file_system::truncate(int fd, std::uint64_t bytes) {
  if (!is_within_file_size_limit(bytes)) return -EFBIG;
  return again([&] { return ::ftruncate(fd, static_cast<off_t>(bytes)); });
}
int file_system::drop_cached(int fd) {
  return -::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}
int file_system::set_flags(int fd, int flags) {
  return or_errno(::fcntl(fd, F_SETFL, flags));
}
int file_system::lock(int fd) {
  return again([&] { return ::flock(fd, LOCK_EX | LOCK_NB); });
}
int file_system::status(int fd, struct stat *to) {
  return or_errno(::fstat(fd, to));
}
int file_system::status_at(int directory, const char *name, struct stat *to) {
  return or_errno(::fstatat(directory, name, to, AT_SYMLINK_NOFOLLOW));
}
bool file_system::leads_to(int directory, const char *name, int fd) {
  struct stat named {
  }, opened{};
  return status_at(directory, name, &named) >= 0 && status(fd, &opened) >= 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}
int file_system::rename_at(int directory, const char *from, const char *to, unsigned flags) {
  return or_errno(::renameat2(directory, from, directory, to, flags));
}
int file_system::link_at(int directory, const char *from, const char *to) {
  return or_errno(::linkat(directory, from, directory, to, 0));
}
int file_system::unlink_at(int directory, const char *name) {
  return or_errno(::unlinkat(directory, name, 0));
}
int file_system::make_directory_at(int directory, const char *name, unsigned mode) {
  return or_errno(::mkdirat(directory, name, mode));
}
int file_system::remove_directory_at(int directory, const char *name) {
  return or_errno(::unlinkat(directory, name, AT_REMOVEDIR));
}

bool file_system::is_in_memory(int fd) {
  struct statfs s {};
  return ::fstatfs(fd, &s) == 0 && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC);
}

int file_system::names_in(int directory, std::vector<std::string> &names) {
  // A new descriptor, because closedir() closes the one it reads.
  const int fd = open_at(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) return fd;
  const std::unique_ptr<DIR, int (*)(DIR *)> d(::fdopendir(fd), &::closedir);
  if (d == nullptr) {
    const int why = -errno;
    close(fd);
    return why;
  }
  for (;;) {
    errno = 0;
    const dirent *entry = ::readdir(d.get());
    if (entry == nullptr) return -errno;
    names.emplace_back(entry->d_name);
  }
}

bool file_system::may_use_ring() {
  return true;
}
int file_system::ring_wrote(int result, std::size_t) {
  return result;
}

}  // namespace stillmap::checkpoint
