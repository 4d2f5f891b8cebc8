// The abstract sockets of this network namespace, as /proc/net/unix has them.
#pragma once

#include <string>
#include <vector>

namespace stillmap::control {

struct abstract_socket {
  std::string name;      // with the '@'
  std::string inode;     // of one of its descriptors: /proc/PID/fd has "socket:[INODE]"
  bool listens = false;  // a stream socket that accepts connections
};

// Those whose names begin so. Allocates host memory: may throw std::bad_alloc.
std::vector<abstract_socket> abstract_sockets(const std::string &front);

}  // namespace stillmap::control
