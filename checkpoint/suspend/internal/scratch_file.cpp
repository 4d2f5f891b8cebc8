#include "stillmap/checkpoint/suspend/internal/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace stillmap::checkpoint {
namespace {

tl::unexpected<error> system_error(const char *op, const char *reason, std::uint64_t value,
                                   int code = errno) {
  return tl::unexpected<error>(
      error{std::error_code(code, std::system_category()), op, reason, value, 0});
}

// A file system that cannot make nameless files gets one whose name is taken away at once.
int open_nameless(const std::string &directory, int flags) {
  const int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory + "/.stillmap-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC | flags);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

result<scratch_file> scratch_file::create(const std::string &directory, std::size_t bytes) {
  constexpr const char *op = "checkpoint::scratch_file";
  bool direct = true;
  int fd = open_nameless(directory, O_DIRECT);
  if (fd < 0 && errno == EINVAL) {  // tmpfs before Linux 6.5
    direct = false;
    fd = open_nameless(directory, 0);
  }
  if (fd < 0) return system_error(op, "no file can be made in the directory", bytes);
  scratch_file made(fd, direct);
  // Now, when nothing has been given up yet, is the time to hear that the disk is too small.
  if (bytes != 0) {
    if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP) {
      return system_error(op, "the file cannot be that large", bytes);
    }
  }
  return made;
}

scratch_file::scratch_file(scratch_file &&o) noexcept
    : fd_(std::exchange(o.fd_, -1)), direct_(o.direct_) {}

scratch_file &scratch_file::operator=(scratch_file &&o) noexcept {
  std::swap(fd_, o.fd_);
  std::swap(direct_, o.direct_);
  return *this;
}

scratch_file::~scratch_file() {
  if (fd_ >= 0) ::close(fd_);
}

status scratch_file::write(const std::byte *from, std::size_t bytes, std::size_t offset) const {
  while (bytes != 0) {
    const ssize_t n = ::pwrite(fd_, from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return system_error("checkpoint::scratch_file", "cannot be written", offset,
                          n < 0 ? errno : ENOSPC);
    }
    from += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::size_t>(n);
  }
  return {};
}

status scratch_file::read(std::byte *to, std::size_t bytes, std::size_t offset) const {
  while (bytes != 0) {
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("checkpoint::scratch_file", "cannot be read", offset);
    if (n == 0) {
      return make_error(errc::corrupt, "checkpoint::scratch_file", "the file ends early", offset);
    }
    to += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace stillmap::checkpoint
