// Debian's `criu`, run as a program: where it is, what it says, and whether this machine lets it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace criu_example {

struct outcome {
  bool good = false;
  std::string said;  // the lines that tell why, where it is not
};

class tool {
 public:
  // STILLMAP_CRIU, else the PATH and the folders of the administrator.
  static std::optional<tool> find();

  const std::string &path() const { return path_; }
  // What the kernel and the rights of this process allow; the reason in plain words.
  outcome check() const;
  // The process is gone afterwards, and is in `folder`. Good: also its parent may wait for it.
  outcome dump(pid_t task, const std::string &folder) const;
  // It is there again, with the same process id, as a child of this process.
  outcome restore(const std::string &folder) const;

 private:
  explicit tool(std::string path) : path_(std::move(path)) {}
  outcome run(const std::vector<std::string> &arguments, const std::string &log) const;
  std::string path_;
};

}  // namespace criu_example
