// Options of a control server: the application's callbacks, access control, and limits.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/audit.h"
#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/migration/record.h"
#include "stillmap/checkpoint/migration/transport.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::control {

// What the application does for the server. The callbacks run one at a time, on a thread of the
// server, which blocks asynchronous signals: a process that they start inherits that. They must not
// throw, and must not destroy the server.
struct server_callbacks {
  using tags_view = std::span<const std::string>;
  // Stops work on these tags: after it has returned, nothing more is queued on their memory and
  // their pages do not change; work queued before may still run. Returns early if `stop` is
  // requested: the server is being destroyed. After an error the request is refused, and resume is
  // not called.
  std::function<status(tags_view tags, std::stop_token stop)> quiesce;
  // Work may continue: the memory is mapped again, with its contents. Follows every successful
  // quiesce that `released` does not follow; for a suspended tag, once it has been resumed.
  std::function<void(tags_view tags)> resume;
  // The memory belongs to another process, on this or another machine: nothing is mapped at its
  // addresses here.
  std::function<void(tags_view tags)> released;
  // During a migration of a task that writes faster than it can be copied: asks it to write less,
  // by this fraction of its speed: 0 (full speed) to below 1. Optional.
  std::function<void(tags_view tags, double fraction)> throttle;
  // For a status. Called at any time, also during another callback; it must not wait. Optional.
  std::function<memory_figures()> memory;
};

struct server_options {
  server_callbacks task;
  // A literal. If set, the server only holds its address: every request is refused as busy, for
  // this reason.
  const char *not_ready = nullptr;
  // A literal. If set, requests that give the memory to another process (handoff, migrate) are refused as not
  // supported, for this reason: the application could not go on without its memory.
  const char *keeps_memory = nullptr;
  // Whether to serve this process. Empty: if it runs as the same user or as root. A process that is served can
  // suspend, move and drop memory, and have files written with the rights of this process. Called for each
  // connection, on the thread that accepts them: it must not wait.
  std::function<bool(const checkpoint::peer_credentials &)> allow;
  // Records each request but those for a status, and each client that is refused, of which at most one a second has a
  // record. Empty: nothing does.
  audit_function audit;
  // A fence after all work queued before quiesce. Empty: the server waits for the whole device.
  std::function<fence()> idle;
  // The suspender to use, of this device. Empty: one of the server's own; memory that is suspended
  // when the server is destroyed is then lost.
  std::shared_ptr<checkpoint::suspender> suspender;
  // For migration requests that name neither: the directory of the ownership record, and the id of
  // the task in it. Empty: a request must name a directory, and its task gets a new id.
  std::string records;
  migration::task_id id;
  // That record, if the application has it open, as for memory that arrived by a migration. The
  // server closes it while the task is sent on, and opens it again if the task stays. With it, a
  // request cannot name another record.
  std::shared_ptr<migration::record_file> record;
  // For migration requests: as migration::send_options::data_connector. Null: data channels use TLS.
  std::shared_ptr<migration::data_connector> data_connector;
  // How long a client may take to send its request, and to receive its response.
  std::chrono::milliseconds timeout{5'000};
  // Connections served at once. A further one replaces the oldest that has sent no request yet; if
  // all have, it is refused as busy.
  std::size_t max_connections = 8;
};

}  // namespace stillmap::control
