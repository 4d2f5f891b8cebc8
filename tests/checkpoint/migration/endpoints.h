// Source and destination of a migration in tests: directories, certificates, and the peer as a
// process of its own.
#pragma once

#include <memory>
#include <string>

#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/migration/tls.h"
#include "tests/checkpoint/handoff/processes.h"

namespace stillmap::migration::testing {

using handoff::testing::meeting_place;
using handoff::testing::note_event;
using handoff::testing::other_process;
using handoff::testing::part;
using handoff::testing::say_and_end;

// A directory that both processes use: the records and credentials of either end. Created in
// TempDir(), and removed by the process that created it.
class test_site {
 public:
  test_site();  // a new one, with certificates
  explicit test_site(std::string folder) : folder_(std::move(folder)) {}  // an existing one
  test_site(const test_site &) = delete;
  ~test_site();

  const std::string &folder() const { return folder_; }
  std::string records(const char *end) const { return folder_ + '/' + end; }
  // Of "source", "destination", "third" or "fourth"; trusts the others.
  credentials of(const char *end) const;
  // The address of an end, once it listens.
  void publish_address(const std::string &where, const char *end = "destination") const;
  std::string address(const char *end = "destination") const;

 private:
  std::string folder_;
  bool made_ = false;
};

// For both ends: a timeout of 30 s, two channels, chunks of 64 KiB. Each step is noted as an event,
// and may be where this process was started to die.
send_options source_options(const test_site &m, const char *end = "source");
receive_options destination_options(const test_site &m, const char *end = "destination");
std::unique_ptr<transport> to_destination(const test_site &m);
// From one end to another, once that listens.
std::unique_ptr<transport> transport_between(const test_site &m, const char *from, const char *to);
// At its previous port, if it had one.
std::unique_ptr<acceptor> at_destination(const test_site &m);
std::unique_ptr<acceptor> acceptor_at(const test_site &m, const char *end);

// Whether a source takes this step only if its task moves with a group.
bool is_of_groups(step s);

// Kills this process if it was started to die at this step.
void die_at(step s);

}  // namespace stillmap::migration::testing
