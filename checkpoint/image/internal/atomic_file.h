// A file under a name that nobody reads, until it takes the name it is meant for.
// docs/image_format.md#writing
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stillmap/checkpoint/image/internal/image_file.h"

namespace stillmap::image {

// Where a file is to be: the directory stays the same one, whatever happens to its name.
class target_name {
 public:
  // Errors: the system's (no such directory); invalid_argument (no name).
  static outcome<target_name> create(file_calls &calls, const std::string &path);
  target_name(target_name &&o) noexcept;
  target_name &operator=(target_name &&) = delete;
  ~target_name();

  int directory() const { return directory_; }
  const std::string &name() const { return name_; }
  file_calls &calls() const { return *calls_; }

 private:
  target_name(file_calls &calls, int directory, std::string name)
      : calls_(&calls), directory_(directory), name_(std::move(name)) {}
  file_calls *calls_;
  int directory_;
  std::string name_;
};

// Removes a temporary if nobody writes it any more: it can be locked. What cannot be removed stays.
void remove_if_dead(file_calls &calls, int directory, const std::string &name);
// Of which name that is a temporary; empty: of none.
std::string_view meant_for(std::string_view name);

class temporary {
 public:
  // `.NAME.XXXXXX` in the same directory, created by us and locked. Those that dead writers of the
  // same name left are removed first. Requires: `to` outlives it.
  // Errors: the system's.
  static outcome<temporary> create(const target_name &to, bool direct);
  temporary(temporary &&o) noexcept;
  temporary &operator=(temporary &&) = delete;
  // Removes the file, unless it has been published.
  ~temporary();

  image_file &file() { return *file_; }
  const std::string &name() const { return name_; }

  // Gives it its name and makes sure of it.
  // Ensures: failure: the name is as it was, and so is the temporary, unless the file system can
  //          neither exchange names nor make sure of them.
  // Errors: the system's; std::errc::file_exists (not replacing, and there is something; or what is
  //         there is no regular file).
  done publish(bool replace);

 private:
  temporary(const target_name &to, std::string name, image_file file)
      : to_(&to), name_(std::move(name)), file_(std::move(file)) {}
  done take_name();
  done exchange_names();
  done make_sure();

  const target_name *to_;
  std::string name_;
  std::optional<image_file> file_;
  bool there_ = true;  // something is under name_ that should go
};

}  // namespace stillmap::image
