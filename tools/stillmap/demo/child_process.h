// The processes a task comes through: this program again, told what to be, and what they say.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "stillmap/checkpoint/migration/credentials.h"
#include "tools/stillmap/cli/command.h"

namespace stillmap::tool {

// A folder for as long as the journey takes: images, sockets, certificates and records.
class journey_folder {
 public:
  static outcome<journey_folder> create();
  explicit journey_folder(std::string path, bool ours = false)
      : path_(std::move(path)), ours_(ours) {}
  journey_folder(journey_folder &&o) noexcept
      : path_(std::move(o.path_)), ours_(std::exchange(o.ours_, false)) {}
  journey_folder &operator=(journey_folder &&) = delete;
  ~journey_folder();

  std::string at(const std::string &name) const { return path_ + '/' + name; }
  const std::string &path() const { return path_; }
  // Where the second process waits. No path: a folder's can be too long for one.
  std::string meeting_place() const {
    return '@' + path_.substr(path_.rfind('/') + 1) + "-handoff";
  }
  // Of one end, believing the other.
  outcome<migration::credentials> credentials(const std::string &mine,
                                              const std::string &theirs) const;

 private:
  std::string path_;
  bool ours_;
};

// What a station says: words with a number each.
using said = std::map<std::string, double>;
void say(const said &what);

class station {
 public:
  static outcome<station> start(const std::string &part, const journey_folder &in,
                                const driver_options &where);
  station(station &&o) noexcept;
  station &operator=(station &&) = delete;
  ~station();  // ends it
  // The next line it says. Errors: exit_failed: it ended, or says nothing for a minute.
  outcome<said> listen();

 private:
  station(std::string part, pid_t pid, int from) : part_(std::move(part)), pid_(pid), from_(from) {}
  std::string part_;
  pid_t pid_;
  int from_;
  std::string heard_;
};

// What the process is that was started as this part.
outcome<exit_status> run_station(const std::string &part, const journey_folder &in,
                                 const driver_options &where);

}  // namespace stillmap::tool
