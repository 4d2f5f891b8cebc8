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

sigset_t ends() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, s);
  return set;
}

// A file or /dev/null is always at its end, and says nothing by it.
bool somebody_holds_stdin() {
  struct stat st {};
  return ::fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

}  // namespace

outcome<std::unique_ptr<until_told>> until_told::create() {
  const sigset_t set = ends();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  owned_fd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  owned_fd over(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (signals.get() < 0 || over.get() < 0) {
    return fail(exit_failed, fmt::format("signals cannot be waited for: {}", std::strerror(errno)));
  }
  return std::unique_ptr<until_told>(new until_told(std::move(signals), std::move(over)));
}

until_told::until_told(owned_fd signals, owned_fd over)
    : signals_(std::move(signals)), over_(std::move(over)), watcher_([this] { watch(); }) {}

until_told::~until_told() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(over_.get(), &one, sizeof one);
  watcher_.join();
}

void until_told::watch() {
  pollfd all[] = {{signals_.get(), POLLIN, 0},
                  {over_.get(), POLLIN, 0},
                  {somebody_holds_stdin() ? STDIN_FILENO : -1, POLLIN, 0}};
  for (;;) {
    if (::poll(all, 3, -1) < 0 && errno != EINTR) break;
    if (all[1].revents != 0) return;
    if (all[0].revents != 0) break;
    if (all[2].revents == 0) continue;
    char ignored[256];
    const ssize_t n = ::read(STDIN_FILENO, ignored, sizeof ignored);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) break;
  }
  tell();
}

void until_told::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, told(), [] { return false; });
}

}  // namespace stillmap::tool
