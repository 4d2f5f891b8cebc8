#include "hostcuda/src/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace hostcuda {
namespace {

CUresult error_of_open() {
  return errno == ENOENT || errno == ESRCH ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_MAP_FAILED;
}

}  // namespace

shared_file &shared_file::operator=(shared_file &&other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) close(fd_);
  fd_ = other.release();
  return *this;
}

shared_file::~shared_file() {
  if (fd_ >= 0) close(fd_);
}

int shared_file::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

shared_file make_file(const char *title, const void *content, std::size_t bytes) {
  shared_file file(memfd_create(title, MFD_CLOEXEC));
  if (file.fd() >= 0 && pwrite(file.fd(), content, bytes, 0) != static_cast<ssize_t>(bytes))
    return {};
  return file;
}

file_name name_of(int fd) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return {0, -1, 0, 0};
  return {getpid(), fd, st.st_dev, st.st_ino};
}

CUresult open_file(const file_name &name, shared_file *out) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
  // The name may be that of anything: opens it for use only when it is known to be the file.
  const shared_file found(open(path, O_PATH | O_CLOEXEC));
  if (found.fd() < 0) return error_of_open();
  struct stat st {};
  if (fstat(found.fd(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_dev != name.device ||
      st.st_ino != name.inode)
    return CUDA_ERROR_INVALID_HANDLE;
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", found.fd());
  *out = shared_file(open(path, O_RDWR | O_CLOEXEC));
  return out->fd() < 0 ? error_of_open() : CUDA_SUCCESS;
}

bool read_start(const shared_file &file, void *out, std::size_t bytes) {
  return pread(file.fd(), out, bytes, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace hostcuda
