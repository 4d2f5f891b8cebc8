// The system calls that write and read images. Tests override them to make them fail.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stillmap::image {

// Each function returns the result of the system call, or the negative errno.
// Threads: safe.
class file_calls {
 public:
  virtual ~file_calls();
  // The real system calls. Never destroyed.
  static file_calls &system();

  // A forked child does not have what this opens for writing: an image that is being written stays
  // locked, and keeps its room, until the last copy of its descriptor is closed. Only close() may close
  // it; in such a child that does nothing. Throws std::bad_alloc.
  virtual int open_at(int directory, const char *name, int flags, unsigned mode);
  virtual int close(int fd);
  virtual long write_at(int fd, const void *from, std::size_t bytes, std::uint64_t offset);
  virtual long read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset);
  virtual int sync_data(int fd);
  virtual int sync(int fd);
  virtual int preallocate(int fd, std::uint64_t bytes);
  virtual int truncate(int fd, std::uint64_t bytes);
  virtual int drop_cached(int fd);
  virtual int set_flags(int fd, int flags);
  virtual int lock(int fd);  // flock: exclusive, non-blocking
  virtual int status(int fd, struct stat *to);
  virtual int status_at(int directory, const char *name, struct stat *to);  // does not follow links
  // Whether the name leads to this file: whoever locks a file may lock one that was removed before.
  bool leads_to(int directory, const char *name, int fd);
  virtual int rename_at(int directory, const char *from, const char *to, unsigned flags);
  virtual int link_at(int directory, const char *from, const char *to);
  virtual int unlink_at(int directory, const char *name);
  virtual int make_directory_at(int directory, const char *name, unsigned mode);
  virtual int remove_directory_at(int directory, const char *name);  // empty ones only
  // Whether the file system keeps files in the page cache only (tmpfs).
  virtual bool is_in_memory(int fd);
  // Appends the names in a directory. 0: all of them; else only some.
  virtual int names_in(int directory, std::vector<std::string> &names);

  // Whether to try io_uring.
  virtual bool may_use_ring();
  // The result of an io_uring write of `bytes`; `result` is what io_uring returned.
  virtual int ring_wrote(int result, std::size_t bytes);
};

// An open directory, or -1 or an error; closes it.
struct open_directory {
  file_calls &calls;
  const int fd;
  ~open_directory() {
    if (fd >= 0) calls.close(fd);
  }
};

}  // namespace stillmap::image
