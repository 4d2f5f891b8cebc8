#include "stillmap/checkpoint/base/internal/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

enum class lock_attempt { taken, another_process, another_user, again };

tl::unexpected<error> held_too_long(lock_attempt why, std::string name) {
  const char *const reason =
      why == lock_attempt::another_user
          ? "another user owns the lock file of the path: remove it, or use a directory that "
            "others "
            "cannot write"
          : "another process keeps the path locked: end it (fuser lists it), or use another path";
  return tl::unexpected(make_error(errc::busy, reason,
                                   static_cast<std::uint64_t>(path_lock_timeout.count()), 0,
                                   error_unit::milliseconds)
                            .value()
                            .about(std::move(name)));
}

result<lock_attempt> try_lock(fork_closed_fd &file, const char *name) {
  // O_NONBLOCK: what has the name may be a FIFO.
  file = fork_closed_fd::open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
  struct stat opened {
  }, named{};
  if (file.get() < 0) {
    const int code = errno;
    // Linux lets nobody open another user's file in a directory such as /tmp.
    if (code == EACCES && ::lstat(name, &named) == 0) return lock_attempt::another_user;
    return make_system_error(code, "the lock file of the path cannot be opened", name);
  }
  if (::fstat(file.get(), &opened) != 0 || !S_ISREG(opened.st_mode) ||
      opened.st_uid != ::geteuid()) {
    return lock_attempt::another_user;
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return lock_attempt::another_process;
    return make_system_error(errno, "the lock file of the path cannot be locked", name);
  }
  // The process that had it locked before has removed the name.
  return file.is_open_at(name) ? lock_attempt::taken : lock_attempt::again;
}

}  // namespace

result<path_lock> path_lock::take(const std::string &path) {
  std::string name = path + ".lock";
  fork_closed_fd file;
  // A stopped process keeps its locks, and no wait for one has a timeout.
  const auto until = std::chrono::steady_clock::now() + path_lock_timeout;
  for (;;) {
    STILLMAP_ASSIGN_OR_RETURN(const lock_attempt now, try_lock(file, name.c_str()));
    if (now == lock_attempt::taken) return path_lock(std::move(file), std::move(name));
    if (now == lock_attempt::again) continue;
    if (std::chrono::steady_clock::now() >= until) return held_too_long(now, std::move(name));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// While it is still locked: afterwards the name is another process's. A forked child has no lock.
path_lock::~path_lock() {
  if (file_.get() >= 0) ::unlink(name_.c_str());
}

bool remove_stale_socket(const std::string &path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) return false;
  path.copy(name.sun_path, path.size());
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
  const owned_fd probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (probe.get() < 0) return false;
  // Refused: no socket is bound there. To one of another kind, which may not listen yet, the answer
  // is EPROTOTYPE, and its owner sees no connection.
  const int connected = ::connect(probe.get(), reinterpret_cast<sockaddr *>(&name), sizeof name);
  return connected != 0 && errno == ECONNREFUSED && ::unlink(path.c_str()) == 0;
}

}  // namespace stillmap::checkpoint
