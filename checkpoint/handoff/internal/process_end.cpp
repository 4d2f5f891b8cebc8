#include "stillmap/checkpoint/handoff/internal/process_end.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>

#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::handoff {
namespace {

// The number after `name` in a file of lines as "Name:\t12". Without allocating: the caller may have
// no memory left.
std::optional<int> number_in(const char *path, std::string_view name) noexcept {
  const owned_fd in(::open(path, O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t n = in.get() < 0 ? -1 : ::read(in.get(), text, sizeof text);
  if (n <= 0) return std::nullopt;
  const std::string_view all(text, static_cast<std::size_t>(n));
  for (std::size_t at = all.find(name); at != std::string_view::npos; at = all.find(name, at + 1)) {
    if (at != 0 && all[at - 1] != '\n') continue;
    const std::size_t from = all.find_first_not_of("\t ", at + name.size());
    if (from == std::string_view::npos) return std::nullopt;
    int number = 0;
    const auto parsed = std::from_chars(text + from, text + n, number);
    return parsed.ec == std::errc() ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

bool is_pidfd_of(int fd, pid_t pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  // O_EXCL: of a thread (PIDFD_THREAD), which other threads of the process can survive.
  return pid > 0 && number_in(path, "Pid:") == pid && (::fcntl(fd, F_GETFL) & O_EXCL) == 0;
}

bool has_ended(int pidfd, pid_t pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/status", static_cast<int>(pid));
  for (;;) {
    pollfd p{pidfd, POLLIN, 0};
    // A process closes its socket shortly before it is dead.
    const int ready = ::poll(&p, 1, 1000);
    if (ready > 0) return (p.revents & POLLIN) != 0;
    if (ready < 0 && errno == EINTR) continue;
    if (number_in(path, "CoreDumping:") != 1) return false;
  }
}

}  // namespace stillmap::handoff
