#include "stillmap/checkpoint/control/internal/abstract_sockets.h"

#include <fstream>
#include <sstream>

namespace stillmap::control {

std::vector<abstract_socket> abstract_sockets(const std::string &front) {
  constexpr const char *accepts = "00010000", *stream = "0001";
  std::vector<abstract_socket> out;
  std::ifstream in("/proc/net/unix");
  for (std::string line; std::getline(in, line);) {
    if (line.find(front) == std::string::npos) continue;
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (name.starts_with(front)) out.push_back({name, inode, flags == accepts && type == stream});
  }
  return out;
}

}  // namespace stillmap::control
