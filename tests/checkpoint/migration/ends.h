// The two ends of a migration in tests: folders, certificates, and the other end as a process of
// its own.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "tests/checkpoint/handoff/processes.h"

namespace stillmap::migration::testing {

using handoff::testing::meeting_place;
using handoff::testing::other_process;
using handoff::testing::part;
using handoff::testing::say_and_end;

// A folder that both processes know: records of either end, and who they are. Made in TempDir(),
// and removed by who made it.
class meeting {
 public:
  meeting();  // a new one, with certificates
  explicit meeting(std::string folder) : folder_(std::move(folder)) {}  // one that is there
  meeting(const meeting &) = delete;
  ~meeting();

  const std::string &folder() const { return folder_; }
  std::string records(const char *end) const { return folder_ + '/' + end; }
  // Of "source" or "destination": believes the other one.
  credentials of(const char *end) const;
  // Where the destination listens, once it does.
  void say_where(const std::string &where) const;
  std::string where() const;

 private:
  std::string folder_;
  bool made_ = false;
};

// Both ends as the tests want them: at most 30 s of silence, two channels, chunks of 64 KiB.
send_options sending(const meeting &m);
receive_options receiving(const meeting &m);
std::unique_ptr<transport> to_destination(const meeting &m);
// At the port where it was before, if it was somewhere.
std::unique_ptr<acceptor> at_destination(const meeting &m);

// Kills this process where it was told to die.
void die_at(step s);

}  // namespace stillmap::migration::testing
