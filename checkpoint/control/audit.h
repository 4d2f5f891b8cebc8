// A record of each request that a control server was sent: who asked for what, of which task, and what came of it.
// docs/operating.md
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/requests.h"

namespace stillmap::control {

struct audited_request {
  checkpoint::peer_credentials client;  // as the kernel says
  std::string client_program;  // the name of its process, which it can choose; empty: it has ended
  std::string task;            // the address of the server
  // none: what the client sent is no request, or it may not send one.
  request_kind request = request_kind::none;
  std::vector<std::string> tags;
  bool all = false;     // all tags
  std::string subject;  // the image, receiver or folder that it names; empty: none
  std::chrono::system_clock::time_point began = std::chrono::system_clock::now();
  std::chrono::nanoseconds duration{0};
  std::optional<error> failed;  // nullopt: it was carried out
  // Clients that were refused since the last record of one, and have no record of their own.
  std::uint64_t refused_before = 0;
};

// Called once for each request, before its response is sent, on the thread of its connection: by several threads at
// once. It delays the response, and of a refused client the next one; it must not throw.
using audit_function = std::function<void(const audited_request &)>;

// Writes records to each of `targets`, which commas separate: the path of a file, which gets a line of JSON for each;
// "journald", or "journald:NAMESPACE". Empty: no function. A file is opened for each record, so it may be renamed at
// any time, and several processes can have the same one.
// Errors: the system's, of a file that cannot be opened for appending or of a journal that is not there; invalid_argument
//         (a file that is not a regular one). What cannot be written later is reported by report_background_error.
result<audit_function> open_audit_log(const std::string &targets);
// The same with the targets of the environment's STILLMAP_AUDIT.
result<audit_function> open_audit_log_of_environment();

}  // namespace stillmap::control
