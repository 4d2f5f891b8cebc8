#include "tools/stillmap/machine/process_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>

#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::tool {

std::string process_file(pid_t pid, const char *file) {
  constexpr std::size_t most = 256 << 10;
  const std::string path = "/proc/" + std::to_string(pid) + "/" + file;
  const owned_fd from(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string out;
  char piece[4096];
  for (ssize_t n = 0; out.size() < most && (n = ::read(from.get(), piece, sizeof piece)) > 0;)
    out.append(piece, static_cast<std::size_t>(n));
  return out;
}

std::string stat_word(pid_t pid, int index) {
  // The name, which may have any character, ends with the last parenthesis.
  const std::string stat = process_file(pid, "stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream words(stat.substr(name_end + 1));
  std::string word;
  for (int i = 0; i <= index; ++i) {
    if (!(words >> word)) return {};
  }
  return word;
}

}  // namespace stillmap::tool
