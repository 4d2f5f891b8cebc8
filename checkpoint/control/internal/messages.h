// Messages of the control protocol: requests and responses as bytes, with every field checked when
// it is read. checkpoint::socket_channel frames them. docs/control_protocol.md
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/checkpoint/snapshot/restore_contents.h"

namespace stillmap::control {

// No value of handoff's, so that connecting to the wrong kind of process is detected.
enum class kind : std::uint16_t {
  status = 0x100,
  suspend,
  resume,
  snapshot,
  handoff,
  migrate,
  abort,
  resolve,
  restore,
  snapshot_progress = 0x180,
  response,
  refusal,
  migration_progress,
};

// The first field of every request.
inline constexpr std::uint32_t protocol_version = 7;

// Limits that a length is checked against before memory is allocated for it.
inline constexpr std::size_t max_request_bytes = std::size_t{64} << 10;
inline constexpr std::size_t max_response_bytes = std::size_t{4} << 20;
inline constexpr std::size_t max_status_tags = 4096;

using bytes = std::vector<std::byte>;
using bytes_view = std::span<const std::byte>;

struct empty_request {};  // status, abort, resolve
struct resume_request {
  std::string tag{};
  bool all = false;
};

// Requests: those two, and those of requests.h. Responses: process_status,
// suspended_tag, image::written, snapshot::restored_contents, handoff::sent_memory,
// migration::sent_memory, and the request_kind that abort has cancelled. Progress:
// snapshot_progress (also of a restore), migration::progress.
template <class T>
bytes encode(const T &message);
// Errors: corrupt (also: relative paths, empty tags, neither tags nor `all`, or
//         both), not_supported (a request of another
//         version: value, limit = ours).
template <class T>
result<T> decode(bytes_view from);

bytes encode(process_status s);  // with as many tags as fit
bytes encode(const error &e);
// The error of the other process: its code, value, limit and unit; detail().cause is its message.
error decode_refusal(bytes_view from);

}  // namespace stillmap::control
