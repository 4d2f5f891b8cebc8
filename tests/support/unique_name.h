// Names for sockets in folders, and in the abstract namespace, that all tests share. A process number is
// not enough: tests in sandboxes have the same ones.
#pragma once

#include <random>
#include <string>

namespace stillmap::testing {

inline std::string unique_name(const std::string &prefix) {
  std::random_device random;
  return prefix + '-' + std::to_string(random()) + '-' + std::to_string(random());
}

}  // namespace stillmap::testing
