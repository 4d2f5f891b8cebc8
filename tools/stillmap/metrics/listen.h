// The socket that metrics are served on: of the network, or in the file system.
#pragma once

#include <string>

#include "stillmap/vmm/base/owned_fd.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct listening_socket {
  owned_fd fd;
  std::string place;  // "http://127.0.0.1:9835/metrics", or the path
  std::string path;   // of a socket in the file system; empty: none
};

// `path`: a socket that only this user can open; one that a dead process has left there is replaced. Empty: `address`,
// as "127.0.0.1:9835" or "[::1]:0".
// Errors: exit_usage (no such address), exit_busy (a process listens there, or something else has the path), the system's.
outcome<listening_socket> listen_for_scrapes(const std::string &path, const std::string &address);

// Removes the path at the end of the scope.
class scrape_socket_path {
 public:
  explicit scrape_socket_path(std::string path) : path_(std::move(path)) {}
  ~scrape_socket_path();
  scrape_socket_path(const scrape_socket_path &) = delete;

 private:
  const std::string path_;
};

}  // namespace stillmap::tool
