// Messages of the migration protocol: a header of fixed size, then a body. Every field is checked
// when it is read. docs/migration_protocol.md#messages
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout_wire.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/migration/group_state.h"
#include "stillmap/checkpoint/migration/record.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration {

// The control channel carries all messages but those that say "data".
enum class kind : std::uint16_t {
  hello = 1,       // from the source: begins a migration
  welcome,         // to the source: the session, and the data acceptor; on a data channel: accepted
  join,            // first on a data channel: the session
  layout,          // the layout, and the numbers of its pages
  prepared,        // to the source: the addresses are reserved
  chunk,           // data: number and digest of a chunk; contents follow
  zeros,           // data: number of a chunk of zeros
  round_end,       // data: end of round `number` on this channel
  round_received,  // to the source: end of round `number`, with the chunks that arrived damaged
  seal,            // digests of all chunks, after the task has stopped
  verified,        // to the source: the chunks that differ from the seal
  commit,          // from the source, after its intent is on record
  owner,           // to the source: the destination owns the task
  discard,         // the source keeps the task
  query,           // first on a channel: asks for the outcome of a session
  query_result,    // the reply: an outcome
  refusal,         // an error
  group,           // first on a channel: asks for the state of a group, or advances it
  group_result,    // the reply: its state
};

struct header {
  static constexpr std::size_t bytes = 40;
  kind what = kind::refusal;
  std::uint64_t body = 0;    // bytes that follow
  std::uint64_t number = 0;  // its meaning depends on the kind
  image::digest digest;
};

// Limits that a length is checked against before memory is allocated for it.
inline constexpr std::uint64_t max_table_bytes = std::uint64_t{1} << 30;
inline constexpr std::uint32_t min_chunk_bytes = 64 << 10, max_chunk_bytes = 16 << 20;
inline constexpr std::uint32_t max_channels = 64;
inline constexpr std::size_t max_transport_name = 32, max_data_address = 255;
inline constexpr std::uint64_t max_welcome_bytes =
    16 + 4 + max_transport_name + 4 + max_data_address;

void encode(const header &h, std::span<std::byte, header::bytes> into);
// Errors: corrupt (not a message of this protocol), not_supported (another version: value, limit =
//         ours).
result<header> decode_header(std::span<const std::byte, header::bytes> from);

struct hello {
  task_id task;
  std::uint64_t epoch = 0;  // at the source
  std::uint64_t page_bytes = 0;
  std::uint32_t chunk_bytes = 0;
  std::uint32_t channels = 0;  // data channels
  image::digest_key digests;   // of this session: the task must not know it
};
// Where data channels are accepted over another transport. Both empty: nowhere.
struct data_endpoint {
  std::string transport, address;
};
struct welcome_message {
  session_id session;
  data_endpoint data;
};
struct layout_message {
  checkpoint::memory_layout layout;
  // A number for each page of the layout, which stays the page's when the layout changes.
  std::vector<std::uint32_t> pages;
};
struct outcome_query {
  task_id task;
  session_id session;
  std::uint64_t epoch = 0;  // the destination's, if the migration succeeds
};
enum class outcome : std::uint32_t {
  owner = 1,        // the destination owns the task
  awaiting_commit,  // the destination has all contents, and will own the task after a commit
  refused,          // the destination does not own the task, and never will in this session
};

// docs/migration_groups.md
struct group_query {
  group_id group;
  std::optional<group_state> to;         // what its state shall be, if that follows
  group_state seen = group_state::open;  // the reply waits for another state,
  std::uint32_t wait_ms = 0;             // so long at most
};
inline constexpr std::uint32_t max_group_wait_ms = 1000;

// Whether a welcome message may have it.
bool can_be_announced(const data_endpoint &e);

std::vector<std::byte> encode(const hello &h);
std::vector<std::byte> encode(const welcome_message &w);
std::vector<std::byte> encode(const layout_message &l);
std::vector<std::byte> encode(const outcome_query &q);
std::vector<std::byte> encode(const group_query &q);
std::vector<std::byte> encode(const session_id &s);
std::vector<std::byte> encode(const std::vector<std::uint64_t> &numbers);
std::vector<std::byte> encode(const std::vector<image::digest> &digests);

// Errors: corrupt. Each field is checked by itself; checkpoint::check() checks a layout as a whole.
result<hello> decode_hello(std::span<const std::byte> from);
result<welcome_message> decode_welcome(std::span<const std::byte> from);
result<layout_message> decode_layout_message(std::span<const std::byte> from);
result<outcome_query> decode_outcome_query(std::span<const std::byte> from);
result<group_query> decode_group_query(std::span<const std::byte> from);
result<session_id> decode_session(std::span<const std::byte> from);
result<std::vector<std::uint64_t>> decode_numbers(std::span<const std::byte> from);
result<std::vector<image::digest>> decode_digests(std::span<const std::byte> from);

// A chunk's number: its page's number, and its index in the page.
constexpr std::uint64_t chunk_number(std::uint32_t page, std::uint32_t index) {
  return std::uint64_t{page} << 32 | index;
}

struct message {
  header head;
  std::vector<std::byte> body;
};

// Sends and receives all messages but the contents of chunks.
// Threads: as the channel.
status send(channel &to, kind what, std::span<const std::byte> body,
            std::chrono::milliseconds timeout, std::uint64_t number = 0);
// Errors: as channel::receive(); corrupt (a body larger than `limit`, found before memory is
//         allocated for it).
result<message> receive(channel &from, std::uint64_t limit, std::chrono::milliseconds timeout);
// Receives a message of kind `want`.
// Errors: as above; corrupt (another kind); what the peer refused with, as an error of `operation`.
result<message> receive(channel &from, kind want, std::uint64_t limit,
                        std::chrono::milliseconds timeout);

}  // namespace stillmap::migration
