// The calls to the system that write and read images, in one place where tests can refuse them.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stillmap::image {

// Each returns what the system's returns, or minus its errno.
// Threads: safe.
class file_calls {
 public:
  virtual ~file_calls();
  // The system's own. Never destroyed.
  static file_calls &system();

  virtual int open_at(int directory, const char *name, int flags, unsigned mode);
  virtual int close(int fd);
  virtual long write_at(int fd, const void *from, std::size_t bytes, std::uint64_t offset);
  virtual long read_at(int fd, void *to, std::size_t bytes, std::uint64_t offset);
  virtual int sync_data(int fd);
  virtual int sync(int fd);
  virtual int set_aside(int fd, std::uint64_t bytes);
  virtual int truncate(int fd, std::uint64_t bytes);
  virtual int drop_cached(int fd);
  virtual int set_flags(int fd, int flags);
  virtual int lock(int fd);  // whole, exclusively, without waiting
  virtual int status(int fd, struct stat *to);
  virtual int status_at(int directory, const char *name, struct stat *to);  // of a link itself
  virtual int rename_at(int directory, const char *from, const char *to, unsigned flags);
  virtual int link_at(int directory, const char *from, const char *to);
  virtual int unlink_at(int directory, const char *name);
  virtual int make_folder_at(int directory, const char *name, unsigned mode);
  virtual int remove_folder_at(int directory, const char *name);  // an empty one
  // Whether a file system has nothing but the page cache (tmpfs), which nothing gets past.
  virtual bool is_in_memory(int fd);
  // Names in a directory; empty where it cannot be read.
  virtual std::vector<std::string> names_in(int directory);

  // Whether to try io_uring, and what it said of a write of that many bytes.
  virtual bool may_use_ring();
  virtual int ring_wrote(int result, std::size_t bytes);
};

}  // namespace stillmap::image
