#include "tools/stillmap/task/wait_for_signal.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace stillmap::tool {
namespace {

sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, s);
  return set;
}

// A file or /dev/null is always at its end, which means nothing.
bool stdin_has_writer() {
  struct stat st {};
  return ::fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

}  // namespace

outcome<std::unique_ptr<signal_waiter>> signal_waiter::create() {
  const sigset_t set = end_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  owned_fd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  owned_fd over(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (signals.get() < 0 || over.get() < 0) {
    return fail(exit_failed, fmt::format("signals cannot be waited for: {}", std::strerror(errno)));
  }
  return std::unique_ptr<signal_waiter>(new signal_waiter(std::move(signals), std::move(over)));
}

signal_waiter::signal_waiter(owned_fd signals, owned_fd over)
    : signals_(std::move(signals)), over_(std::move(over)), watcher_([this] { watch(); }) {}

signal_waiter::~signal_waiter() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(over_.get(), &one, sizeof one);
  watcher_.join();
}

void signal_waiter::watch() {
  pollfd all[] = {{signals_.get(), POLLIN, 0},
                  {over_.get(), POLLIN, 0},
                  {stdin_has_writer() ? STDIN_FILENO : -1, POLLIN, 0}};
  for (;;) {
    if (::poll(all, 3, -1) < 0) {
      if (errno == EINTR) continue;
      return ask(1);
    }
    if (all[1].revents != 0) return;
    if (all[0].revents != 0) {
      signalfd_siginfo read[8];
      const ssize_t n = ::read(signals_.get(), read, sizeof read);
      if (n > 0) ask(static_cast<unsigned>(static_cast<std::size_t>(n) / sizeof read[0]));
    }
    if (all[2].revents == 0) continue;
    char ignored[256];
    const ssize_t n = ::read(STDIN_FILENO, ignored, sizeof ignored);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    all[2].fd = -1;
    ask(1);
  }
}

void signal_waiter::ask(unsigned times) {
  {
    const std::lock_guard lock(mutex_);
    asked_ += times;
  }
  changed_.notify_all();
  stop_.request_stop();
}

bool signal_waiter::wait_for(unsigned times) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ || asked_ >= times; });
  return !finished_;
}

void signal_waiter::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

}  // namespace stillmap::tool
