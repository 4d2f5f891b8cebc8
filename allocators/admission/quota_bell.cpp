#include "stillmap/allocators/admission/quota_bell.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>

#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap {
namespace {

bool is_fifo(int fd) {
  struct stat st = {};
  return ::fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

// Without host memory: a path that is too long names nothing.
class bell_path {
 public:
  bell_path(const std::string &quota_path, std::size_t participant) {
    const int n =
        std::snprintf(text_.data(), text_.size(), "%s.bell.%zu", quota_path.c_str(), participant);
    if (n < 0 || static_cast<std::size_t>(n) >= text_.size()) text_[0] = 0;
  }
  const char *c_str() const { return text_.data(); }

 private:
  std::array<char, PATH_MAX> text_;
};

// A full FIFO has a ring already.
void write_byte(int fd) {
  const char byte = 0;
  while (::write(fd, &byte, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace

quota_bell::~quota_bell() {
  if (is_open()) ::unlink(path_.c_str());
}

status quota_bell::open(const std::string &quota_path, std::size_t participant) {
  std::string path = bell_path(quota_path, participant).c_str();
  struct stat st = {};
  if (::stat(quota_path.c_str(), &st) != 0)
    return make_system_error(errno, "the quota's access rights cannot be read", quota_path);
  ::unlink(path.c_str());
  if (::mkfifo(path.c_str(), 0600) != 0)
    return make_system_error(errno, "the participant's FIFO cannot be created", path);
  // For reading and writing: there is always a reader, and no end of file.
  fork_closed_fd made = fork_closed_fd::open(path.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW);
  if (made.get() < 0 || !is_fifo(made.get())) {
    const int code = made.get() < 0 ? errno : EEXIST;
    ::unlink(path.c_str());
    return make_system_error(code, "the participant's FIFO cannot be opened", path);
  }
  // Whoever may write the quota may ring. Where it is the group's, that may need the right to it: without it, such
  // participants are heard when this one looks again.
  [[maybe_unused]] const int owned = ::fchown(made.get(), static_cast<uid_t>(-1), st.st_gid);
  [[maybe_unused]] const int shared = ::fchmod(made.get(), st.st_mode & 0666);
  path_ = std::move(path);
  fifo_ = std::move(made);
  return {};
}

void quota_bell::wait(std::chrono::milliseconds timeout) const {
  struct pollfd p = {fifo_.get(), POLLIN, 0};
  if (::poll(&p, 1, static_cast<int>(timeout.count())) <= 0) return;
  std::array<char, 256> all;
  while (::read(fifo_.get(), all.data(), all.size()) == static_cast<ssize_t>(all.size())) {
  }
}

void quota_bell::ring() const {
  if (is_open()) write_byte(fifo_.get());
}

void quota_bell::ring(const std::string &quota_path, std::size_t participant) noexcept {
  const bell_path path(quota_path, participant);
  // For reading, too: a FIFO without a reader raises SIGPIPE.
  const owned_fd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() >= 0 && is_fifo(fd.get())) write_byte(fd.get());
}

void quota_bell::remove(const std::string &quota_path, std::size_t participant) noexcept {
  ::unlink(bell_path(quota_path, participant).c_str());
}

}  // namespace stillmap
