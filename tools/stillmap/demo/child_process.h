// The child processes of the lifecycle demo: this program again, with the part that it runs, and the
// lines that it reports.
#pragma once

#include <sys/types.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/migration/credentials.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/demo/demo_task.h"

namespace stillmap::tool {

// A temporary folder for images, certificates and records.
class demo_folder {
 public:
  static outcome<demo_folder> create();
  explicit demo_folder(std::string path, bool ours = false) : path_(std::move(path)), ours_(ours) {}
  demo_folder(demo_folder &&o) noexcept
      : path_(std::move(o.path_)), ours_(std::exchange(o.ours_, false)) {}
  demo_folder &operator=(demo_folder &&) = delete;
  ~demo_folder();

  std::string at(const std::string &name) const { return path_ + '/' + name; }
  const std::string &path() const { return path_; }
  // The socket of the second process: an abstract name, since a path may be too long.
  std::string handoff_socket() const {
    return '@' + path_.substr(path_.rfind('/') + 1) + "-handoff";
  }
  // The credentials of one end, which trusts the other one.
  outcome<migration::credentials> credentials(const std::string &mine,
                                              const std::string &theirs) const;

 private:
  std::string path_;
  bool ours_;
};

// A line from a child process: words with a number each.
using report_line = std::map<std::string, double>;
void print_line(const report_line &line);
// The line of a process that has checked the task.
report_line line_of(const task_check &check);

class child_process {
 public:
  static outcome<child_process> start(const std::string &part, const demo_folder &in,
                                      const driver_options &driver);
  child_process(child_process &&o) noexcept
      : part_(std::move(o.part_)),
        pid_(std::exchange(o.pid_, -1)),
        from_(std::move(o.from_)),
        buffered_(std::move(o.buffered_)) {}
  child_process &operator=(child_process &&) = delete;
  ~child_process();  // kills it
  // Its next line. Errors: exit_failed (it ended), exit_busy (no line within a minute).
  outcome<report_line> read_line();

 private:
  child_process(std::string part, pid_t pid, owned_fd from)
      : part_(std::move(part)), pid_(pid), from_(std::move(from)) {}
  std::string part_;
  pid_t pid_;
  owned_fd from_;
  std::string buffered_;
};

// Runs a part in the child process.
outcome<exit_status> run_part(const std::string &part, const demo_folder &in,
                              const driver_options &driver);

}  // namespace stillmap::tool
