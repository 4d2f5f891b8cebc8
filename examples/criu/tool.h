// Runs the `criu` program: finds it, checks whether it works on this machine, dumps and restores.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace criu_example {

struct outcome {
  bool good = false;
  std::string reason;  // why it failed
};

class tool {
 public:
  // Looks at STILLMAP_CRIU, then in PATH, /usr/local/sbin and /usr/sbin.
  static std::optional<tool> find();

  const std::string &path() const { return path_; }
  // Checks the capabilities of this process, and runs `criu check`.
  outcome check() const;
  // Dumps the process into `folder`, which ends it; its parent must still wait for it.
  outcome dump(pid_t task, const std::string &folder) const;
  // Restores the process, with its process id, as a child of this process.
  outcome restore(const std::string &folder) const;

 private:
  explicit tool(std::string path) : path_(std::move(path)) {}
  outcome run(const std::vector<std::string> &arguments, const std::string &log) const;
  std::string path_;
};

}  // namespace criu_example
