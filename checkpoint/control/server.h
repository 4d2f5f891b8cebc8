// A process that can be asked from outside: what it holds, to let go of it, to save it, to hand it
// over. docs/control.md has the protocol and how it is used from the command line.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/handoff/connection.h"
#include "stillmap/checkpoint/migration/record.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::control {

// What the application does for it. One at a time, on a thread of the server's. Must not throw, and
// must not destroy the server.
struct server_callbacks {
  using tags_view = std::span<const std::string>;
  // Brings work on these tags to a stop: when it returns, nothing more is queued on their memory
  // and none of their pages changes; what has been queued may still run. Heeds `stop`: the server
  // is being destroyed. An error refuses the request, and go_on is not called.
  std::function<status(tags_view tags, std::stop_token stop)> quiesce;
  // Work may go on: the memory is there as it was. Follows every good quiesce, for a tag that was
  // suspended when it has been resumed. Not called for memory that was handed over.
  std::function<void(tags_view tags)> go_on;
  // The memory is another process's now, here or on another machine: nothing is behind its
  // addresses (see handoff::give).
  std::function<void(tags_view tags)> given_away;
  // While it is migrated and writes faster than it can be copied: to write less, by that part of
  // its speed (0: as it likes again; below 1).
  std::function<void(tags_view tags, double part)> throttle;
};

struct server_options {
  server_callbacks task;
  // Whether to answer this process. Without: its user must be ours. Whoever is answered can have
  // memory taken away, and files written with the rights of this process.
  std::function<bool(const handoff::peer &)> allow;
  // When all that was queued before quiesce has passed. Without: all of the device is waited for.
  std::function<fence()> idle;
  // What suspends; of this device. Without: one of the server's own, and what is suspended when the
  // server goes is lost.
  std::shared_ptr<checkpoint::suspender> suspender;
  // For migrations that say neither: the folder of the record that says whose the task is, and its
  // number there. Without: a request has to name a folder, and its task is a new one.
  std::string records;
  migration::task_id id;
  // That record, where it is open already, as for memory that came here by a migration. The server
  // gives it up while the task is sent on, and takes it again if it stays. With it no request names
  // another.
  std::shared_ptr<migration::record_file> record;
  // How long an asker may take to say what it wants, and to take its answer.
  handoff::patience wait{5'000};
  // Askers at once; one more is turned away as busy.
  std::size_t most_askers = 8;
};

// Answers while it lives. Costs one thread that sleeps; one more for each asker.
//
// Status is always answered. Everything else is done one at a time: whoever comes in between is
// refused as busy. A request that fails leaves everything as it was.
// Threads: safe.
class server {
 public:
  // Listens at `where`: a path, or an abstract name behind '@'. What is left there of a process
  // that died is replaced.
  // Errors: busy (somebody listens there), invalid_argument (no such name; no askers), the
  // system's. Cost:   no driver call.
  static result<std::unique_ptr<server>> start(const device &d, const std::string &where,
                                               server_options options = {});
  // Waits for the request that is under way: a snapshot, a handoff that is not offered yet and a
  // migration whose intent is not on record are given up, suspending and resuming end. What is
  // undecided stays stopped, and its record `intent`: migration::sender::settle() finds out.
  ~server();
  server(const server &) = delete;
  server &operator=(const server &) = delete;

  const std::string &where() const;

 private:
  class core;
  explicit server(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::control
