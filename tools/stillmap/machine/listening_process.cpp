#include "tools/stillmap/machine/listening_process.h"

#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "stillmap/checkpoint/control/internal/abstract_sockets.h"

namespace stillmap::tool {
namespace {

pid_t named_process(const std::string &socket) {
  constexpr std::string_view front = "@stillmap-";
  pid_t pid = 0;
  if (socket.starts_with(front))
    std::from_chars(socket.data() + front.size(), socket.data() + socket.size(), pid);
  return pid;
}

// Of all sockets of that name: one that listens, and connections that wait for it.
std::set<std::string> links_to(const std::string &socket) {
  std::set<std::string> out;
  for (const control::abstract_socket &s : control::abstract_sockets(socket)) {
    if (s.name == socket) out.insert("socket:[" + s.inode + "]");
  }
  return out;
}

bool has_one_open(pid_t pid, const std::set<std::string> &sockets) {
  std::error_code trouble;
  std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/fd", trouble);
  for (const std::filesystem::directory_iterator end; !trouble && at != end;
       at.increment(trouble)) {
    std::error_code gone;
    const auto leads_to = std::filesystem::read_symlink(at->path(), gone);
    if (!gone && sockets.contains(leads_to.string())) return true;
  }
  return false;
}

}  // namespace

pid_t listening_process(const std::string &socket) {
  const pid_t pid = named_process(socket);
  return pid > 0 && has_one_open(pid, links_to(socket)) ? pid : 0;
}

}  // namespace stillmap::tool
