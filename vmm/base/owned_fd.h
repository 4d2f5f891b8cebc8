// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace stillmap {

// Owns a file descriptor, and closes it.
class owned_fd {
 public:
  owned_fd() = default;
  explicit owned_fd(int fd) : fd_(fd) {}
  owned_fd(owned_fd &&o) noexcept : fd_(o.release()) {}
  owned_fd &operator=(owned_fd &&o) noexcept {
    if (this != &o) {
      close();
      fd_ = o.release();
    }
    return *this;
  }
  ~owned_fd() { close(); }

  int get() const noexcept { return fd_; }  // -1: none
  // Gives up ownership.
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  void close() noexcept {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd_ = -1;
};

}  // namespace stillmap
