// Messages of the control protocol: requests and responses as bytes, with every field checked when
// it is read. handoff::connection frames them. docs/control.md#protocol
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"

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
  snapshot_progress = 0x180,
  response,
  refusal,
  migration_progress,
};

// The first field of every request.
inline constexpr std::uint32_t protocol_version = 2;

// Limits that a length is checked against before memory is allocated for it.
inline constexpr std::size_t max_request_bytes = std::size_t{64} << 10;
inline constexpr std::size_t max_response_bytes = std::size_t{4} << 20;
inline constexpr std::size_t max_status_tags = 4096;

using bytes = std::vector<std::byte>;
using bytes_view = std::span<const std::byte>;

// A request without fields: status, abort, resolve.
bytes encode_empty_request();
bytes encode(const suspend_request &r);
bytes encode_resume(const std::string &tag);
bytes encode(const snapshot_request &r);
bytes encode(const handoff_request &r);
bytes encode(const migrate_request &r);

// Errors: corrupt (also: relative paths, empty tags, no tags), not_supported (another version:
//         value, limit = ours).
status decode_empty_request(bytes_view from);
result<suspend_request> decode_suspend(bytes_view from);
result<std::string> decode_resume(bytes_view from);
result<snapshot_request> decode_snapshot(bytes_view from);
result<handoff_request> decode_handoff(bytes_view from);
result<migrate_request> decode_migrate(bytes_view from);

bytes encode(const process_status &s);  // as many tags as fit
bytes encode(const checkpoint::suspended_tag &s);
bytes encode(const image::written &w);
bytes encode(const handoff::sent_memory &s);
bytes encode(const snapshot_progress &p);
bytes encode(const migration::progress &p);
bytes encode(const migration::sent_memory &s);
bytes encode(request_kind aborted);
bytes encode(const error &e);

result<process_status> decode_status(bytes_view from);
result<checkpoint::suspended_tag> decode_suspended(bytes_view from);
result<image::written> decode_written(bytes_view from);
result<handoff::sent_memory> decode_handed_off(bytes_view from);
result<snapshot_progress> decode_snapshot_progress(bytes_view from);
result<migration::progress> decode_migration_progress(bytes_view from);
result<migration::sent_memory> decode_migrated(bytes_view from);
result<request_kind> decode_aborted(bytes_view from);
// The error of the other process: its code, value, limit and unit; detail().cause is its message.
error decode_refusal(bytes_view from);

}  // namespace stillmap::control
