#include "stillmap/checkpoint/handoff/internal/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "stillmap/vmm/physical_memory.h"

namespace stillmap::handoff {
namespace {

constexpr const char *socket_path_op = "handoff::connection";

std::string directory_of(const std::string &path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

result<fork_closed_fd> lock_directory_of(const std::string &path) {
  std::string directory = directory_of(path);
  auto fd = fork_closed_fd::open(directory.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd.get() < 0) {
    return make_system_error(errno, socket_path_op, "the directory of the socket cannot be opened",
                             std::move(directory));
  }
  // A stopped process keeps its locks, and no wait for one has a timeout.
  const auto until = std::chrono::steady_clock::now() + directory_lock_timeout;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return make_system_error(errno, socket_path_op,
                               "the directory of the socket cannot be locked",
                               std::move(directory));
    }
    if (std::chrono::steady_clock::now() >= until) {
      const error e{make_error_code(errc::busy),
                    socket_path_op,
                    "another process keeps the directory locked: end it (fuser lists it), or use "
                    "another directory",
                    static_cast<std::uint64_t>(directory_lock_timeout.count()),
                    0,
                    error_unit::milliseconds,
                    {}};
      return tl::unexpected(e.about(std::move(directory)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fd;
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

}  // namespace stillmap::handoff
