// The fixture of tests of `stillmap task`: a task of this process, and the program as other processes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/vmm/reservation.h"
#include "tests/checkpoint/control/memory.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {

class task_test : public command_test {
 protected:
  void SetUp() override;     // opens a device, or skips where it has no pages
  void TearDown() override;  // kills the processes first

  const device &dev() const { return *device_; }
  std::size_t page() const { return dev().capabilities().page_bytes; }
  std::string file(const std::string &name) const { return (folder_ / name).string(); }
  // What is printed, on standard error if it failed, has each of `says`.
  void expect(const ran &r, int status, std::initializer_list<std::string> says) const;

  // Memory of the tags "weights" and "cache", controlled at where_. The task before it is gone.
  void start_task(control::server_options options = {}, bool exportable = true);
  void stop_task();
  // Addresses without memory.
  void add_addresses(const std::string &tag, device_address hint = {});

  // Starts the program with `arguments`. What it prints is in the files NAME.out and NAME.err.
  void start_process(const std::string &name, const std::string &arguments);
  // The exit status of a process that ends, or 128 and its signal.
  int ended(const std::string &name);
  // What is in a file, once `says` is.
  std::string once(const std::string &name, const std::string &says) const;

  // Credentials and a folder for records, of "here" and of "there".
  void make_credentials() const;
  std::string fingerprint(const char *who) const;
  // Who we are, and that we trust the other.
  std::string as(const char *who, const char *other) const;
  std::string records(const char *who) const { return "'" + file("records-") + who + "'"; }
  // stillmap task migrate receive, as a process that is controlled at control_of(name). (Not the
  // default, which has the PID in it: processes of other PID namespaces may have the same one.)
  void start_destination(const std::string &name, const std::string &arguments);
  std::string control_of(const std::string &name) const { return controls_ + '-' + name; }
  // The address at which it waits.
  std::string place_of(const std::string &name) const;

  std::optional<device> device_;
  std::string where_ = control::testing::new_place();
  std::optional<control::server> server_;
  std::atomic<int> went_on_{0}, given_away_{0};
  std::map<std::string, pid_t> processes_;  // those that are not known to have ended

 private:
  std::optional<checkpoint::restored_memory> memory_;
  std::vector<reservation> addresses_;
  const std::string controls_ = control::testing::new_place();
};

}  // namespace stillmap::testing
