// A file that is written under a temporary name and published under its target name atomically.
// docs/image_format.md#writing
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/vmm/base/creating_process.h"

namespace stillmap::checkpoint {

// The directory and name that a file will get. The directory is held open, so that renaming it
// changes nothing.
class target_name {
 public:
  // Errors: invalid_argument (the path names no file); errors of system calls (no such directory).
  static result<target_name> create(file_system &files, const std::string &path);
  target_name(target_name &&o) noexcept;
  target_name &operator=(target_name &&) = delete;
  ~target_name();

  int directory() const { return directory_; }
  const std::string &name() const { return name_; }
  file_system &files() const { return *files_; }

 private:
  target_name(file_system &files, int directory, std::string name)
      : files_(&files), directory_(directory), name_(std::move(name)) {}
  file_system *files_;
  int directory_;
  std::string name_;
};

// Removes a temporary file whose writer is gone: one that can be locked. Failures are ignored.
void remove_if_dead(file_system &files, int directory, const std::string &name);
// The target name of a temporary file's name; empty: not the name of a temporary file.
std::string_view target_of_temporary(std::string_view name);

class atomic_file {
 public:
  // Creates and locks `.NAME.stillmap-XXXXXX` in the target's directory, after removing the
  // temporary files that dead writers of the same name left. `direct`: use direct I/O if possible.
  // Requires: `to` outlives it.
  // Errors:   errors of system calls.
  static result<atomic_file> create(const target_name &to, bool direct);
  // The same under a temporary name that no other writer uses, because the caller holds a lock: what
  // a dead one left under it is overwritten, and the directory is not searched.
  static result<atomic_file> create_as(const target_name &to, std::string name);
  atomic_file(atomic_file &&o) noexcept;
  atomic_file &operator=(atomic_file &&) = delete;
  // Removes the file unless it was published; not in a forked child.
  ~atomic_file();

  block_file &file() { return *file_; }
  const std::string &name() const { return name_; }

  // Renames the file to its target name and syncs the directory.
  // Ensures: failure: both names are unchanged, unless the file system can neither exchange names
  //          nor sync the directory.
  // Errors:  std::errc::file_exists (not replacing, and the name is taken; or what has the name is
  //          not a regular file); errors of system calls.
  status publish(bool replace);

 private:
  atomic_file(const target_name &to, std::string name, block_file file)
      : to_(&to), name_(std::move(name)), file_(std::move(file)) {}
  status take_name();
  status exchange_names();
  status sync_directory();

  const target_name *to_;
  std::string name_;
  std::optional<block_file> file_;
  bool remove_ = true;  // a file is under name_ that must be removed
  creating_process process_;
};

}  // namespace stillmap::checkpoint
