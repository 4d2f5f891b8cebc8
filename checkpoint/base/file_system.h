// The file system of images, sets and ownership records. An application can give another one than the
// system's: one that counts or delays, keeps files in memory, or fails where a test wants it to.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stillmap::checkpoint {

// Each function does what the Linux system call in its comment does. A derived class overrides the
// functions that it does otherwise, and calls those of this class for the rest.
//
// Values:   sizes and offsets are in bytes; `directory` is a descriptor of open_at() or AT_FDCWD;
//           `name` is relative to it; flags and modes are those of <fcntl.h>. A descriptor of open_at()
//           is passed to no other file system, so it need not be one of the kernel's (may_use_ring()).
// Errors:   the negative errno, EINTR excepted: interrupted calls are repeated. An override may return
//           any, and Stillmap reports it with its errno.
// Threads:  safe, and overrides must be; several threads read and write one descriptor at once.
// Lifetime: outlives everything that was opened, written or listed with it.
// Throws:   std::bad_alloc at most.
class file_system {
 public:
  virtual ~file_system();
  // The system's own. Never destroyed.
  static file_system &system();

  // openat(): a descriptor. A forked child does not have what this opens for writing: an image that is
  // being written stays locked, and keeps its room, until the last copy of its descriptor is closed.
  // In such a child close() does nothing for it. Only close() may close a descriptor.
  virtual int open_at(int directory, const char *name, int flags, unsigned mode);
  // close(): 0. The descriptor is closed whatever is returned.
  virtual int close(int fd);

  // pwrite() and pread(): the bytes that were written or read, which may be fewer; read 0 at the end.
  // With O_DIRECT, sizes, offsets and memory are multiples of io_block_bytes; EINVAL turns it off.
  virtual long write_at(int fd, const void *from, std::size_t bytes, std::uint64_t offset);
  virtual long read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset);
  // fdatasync() of a file; fsync() of a directory or a file: 0 once its data, or its names, are durable.
  virtual int sync_data(int fd);
  virtual int sync(int fd);
  // fallocate(), which makes the file at least so large; an error costs no more than fragments.
  virtual int preallocate(int fd, std::uint64_t bytes);
  virtual int truncate(int fd, std::uint64_t bytes);  // ftruncate()
  virtual int drop_cached(int fd);                    // posix_fadvise(POSIX_FADV_DONTNEED); advice
  virtual int set_flags(int fd, int flags);           // fcntl(F_SETFL)
  // flock(), exclusive, non-blocking: 0, or -EWOULDBLOCK where another open file has the lock.
  // -EOPNOTSUPP, -ENOLCK and -EINVAL: files cannot be locked here, and writers go on without.
  virtual int lock(int fd);

  virtual int status(int fd, struct stat *to);                              // fstat()
  virtual int status_at(int directory, const char *name, struct stat *to);  // does not follow links
  // Whether the name leads to this open file: a file that was locked may have been removed before.
  bool leads_to(int directory, const char *name, int fd);
  // Appends the names in a directory. 0: all of them; an error: some of them.
  virtual int names_in(int directory, std::vector<std::string> &names);
  // renameat2(), atomic; RENAME_NOREPLACE and RENAME_EXCHANGE, or -EINVAL where it has none.
  virtual int rename_at(int directory, const char *from, const char *to, unsigned flags);
  virtual int link_at(int directory, const char *from, const char *to);
  virtual int unlink_at(int directory, const char *name);
  virtual int make_directory_at(int directory, const char *name, unsigned mode);
  virtual int remove_directory_at(int directory, const char *name);  // empty ones only

  // Whether files are in the page cache only (tmpfs), where direct I/O is slower.
  virtual bool is_in_memory(int fd);

  // Whether writers may hand a file's descriptor to io_uring, past write_at(). Return false where it is
  // not the kernel's, or where write_at() does something else than to write.
  virtual bool may_use_ring();
  // Called for each write of `bytes` that io_uring has ended, with its result; what is returned counts
  // as the result.
  virtual int ring_wrote(int result, std::size_t bytes);
};

// An open directory, or a negative errno; closes it.
struct open_directory {
  file_system &files;
  const int fd;
  ~open_directory() {
    if (fd >= 0) files.close(fd);
  }
};

}  // namespace stillmap::checkpoint
