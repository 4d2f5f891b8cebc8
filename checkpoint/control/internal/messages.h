// Requests and answers as bytes, every field checked when read. Framing is handoff::connection's.
// Internal to server and client.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/checkpoint/control/failure.h"
#include "stillmap/checkpoint/control/requests.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::control {

// None of handoff's: a name that leads to the wrong kind of process is told apart at once.
enum class kind : std::uint16_t {
  status = 0x100,
  suspend,
  resume,
  snapshot,
  give,
  migrate,
  abort,
  settle,
  progress = 0x180,
  answer,
  refusal,
  migrating,
};

// Every request begins with it.
inline constexpr std::uint32_t protocol_version = 1;

// Bounds on what is believed before memory is taken for it.
inline constexpr std::size_t largest_request = std::size_t{64} << 10;
inline constexpr std::size_t largest_answer = std::size_t{4} << 20;
inline constexpr std::size_t most_tags_told = 4096;

using bytes = std::vector<std::byte>;
using bytes_view = std::span<const std::byte>;

bytes encode_status_request();
bytes encode(const suspend_request &r);
bytes encode_resume(const std::string &tag);
bytes encode(const snapshot_request &r);
bytes encode(const give_request &r);
bytes encode(const migrate_request &r);
bytes encode_abort_request();
bytes encode_settle_request();

// Errors of all: corrupt; not_supported (another version: value, limit = ours). Paths are absolute,
// tags are not empty, and there is at least one of them.
status decode_status_request(bytes_view from);
result<suspend_request> decode_suspend(bytes_view from);
result<std::string> decode_resume(bytes_view from);
result<snapshot_request> decode_snapshot(bytes_view from);
result<give_request> decode_give(bytes_view from);
result<migrate_request> decode_migrate(bytes_view from);
status decode_abort_request(bytes_view from);
status decode_settle_request(bytes_view from);

bytes encode(const process_status &s);  // as many tags as fit
bytes encode(const checkpoint::suspended_tag &s);
bytes encode(const image::written &w);
bytes encode(const handoff::given_memory &g);
bytes encode(const snapshot_progress &p);
bytes encode(const migration::progress &p);
bytes encode(const migrated &m);
bytes encode(request_kind aborted);
bytes encode(const failure &f);

result<process_status> decode_status(bytes_view from);
result<checkpoint::suspended_tag> decode_suspended(bytes_view from);
result<image::written> decode_written(bytes_view from);
result<handoff::given_memory> decode_given(bytes_view from);
result<snapshot_progress> decode_progress(bytes_view from);
result<migration::progress> decode_migrating(bytes_view from);
result<migrated> decode_migrated(bytes_view from);
result<request_kind> decode_aborted(bytes_view from);
failure decode_refusal(bytes_view from);

}  // namespace stillmap::control
