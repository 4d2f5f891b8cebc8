// Files that another process opens by name, for the handles of legacy IPC: 64 bytes without a
// descriptor.
//
// The name is that of the process, its descriptor, and the inode, which tells a descriptor that has
// been closed and used again. The other process opens it at /proc/PID/fd, so it must run in the same
// PID namespace and as the same user. When the first process closes the file, the name is void.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace hostcuda {

// Comes from another process: nothing in it is trusted.
struct file_name {
  std::int32_t pid;
  std::int32_t fd;
  std::uint64_t device;
  std::uint64_t inode;
};

// Owns a descriptor.
class shared_file {
 public:
  shared_file() = default;
  explicit shared_file(int fd) : fd_(fd) {}
  shared_file(shared_file &&other) noexcept : fd_(other.release()) {}
  shared_file &operator=(shared_file &&other) noexcept;
  ~shared_file();

  int fd() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

// Creates a memfd with this content. Its fd() is -1 without memory or a descriptor.
shared_file make_file(const char *title, const void *content, std::size_t bytes);

// The name of an open file of this process.
file_name name_of(int fd);

// Opens a file of another process, for reading and writing.
// Errors: INVALID_HANDLE (there is no such file), MAP_FAILED (not permitted, or no descriptor).
CUresult open_file(const file_name &name, shared_file *out);

// Whether the file has at least `bytes`; then reads its start.
bool read_start(const shared_file &file, void *out, std::size_t bytes);

}  // namespace hostcuda
