#include "tools/stillmap/slurm/job_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

namespace stillmap::tool {
namespace {

constexpr std::chrono::milliseconds lock_interval{10};

struct flock byte_of(std::uint32_t job) {
  struct flock out {};
  out.l_type = F_WRLCK;
  out.l_whence = SEEK_SET;
  out.l_start = job;
  out.l_len = 1;
  return out;
}

// Not another process that has its id by then.
void end_holder(int file, const struct flock &held) {
  const owned_fd process(static_cast<int>(::syscall(SYS_pidfd_open, held.l_pid, 0)));
  struct flock again = held;
  again.l_type = F_WRLCK;
  const bool holds_still = process.get() >= 0 && ::fcntl(file, F_GETLK, &again) == 0 &&
                           again.l_type != F_UNLCK && again.l_pid == held.l_pid;
  if (holds_still) (void)::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
}

tl::unexpected<failure> lock_failure(const std::string &file, int error) {
  return fail(error == EACCES || error == EPERM ? exit_refused : exit_failed,
              fmt::format("cannot lock {}: {}", file, std::generic_category().message(error)));
}

}  // namespace

outcome<job_lock> job_lock::take(const std::string &file, std::uint32_t job, holder_rule rule,
                                 std::chrono::steady_clock::time_point until) {
  owned_fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return lock_failure(file, errno);
  for (;;) {
    struct flock wanted = byte_of(job);
    if (::fcntl(fd.get(), F_SETLK, &wanted) == 0) return job_lock(std::move(fd));
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return lock_failure(file, errno);
    struct flock held = byte_of(job);
    const bool is_held = ::fcntl(fd.get(), F_GETLK, &held) == 0 && held.l_type != F_UNLCK;
    // 0 or -1: it is in another PID namespace.
    if (is_held && rule == holder_rule::end && held.l_pid > 1) end_holder(fd.get(), held);
    if (std::chrono::steady_clock::now() >= until) {
      return fail(exit_busy, fmt::format("another request for job {} has not ended{}", job,
                                         is_held ? fmt::format(" (process {})", held.l_pid) : ""));
    }
    std::this_thread::sleep_for(lock_interval);
  }
}

}  // namespace stillmap::tool
