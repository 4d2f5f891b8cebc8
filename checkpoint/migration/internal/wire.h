// What goes over a channel: a header of fixed size, then as many bytes as it says. Every field is
// checked when read. docs/migration.md#messages. Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/internal/layout_wire.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/migration/record.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration {

enum class kind : std::uint16_t {
  hello = 1,  // control, from the source: begins
  welcome,    // to it: the session
  join,       // the first on a data channel
  layout,     // what memory is where, and the numbers of its pages
  prepared,   // the addresses are there
  chunk,      // data: number, digest; contents follow
  zeros,      // data: number
  mark,       // data: the end of round `number` on this channel
  landed,     // control, to the source: round `number` is there; bad chunks follow
  seal,       // control: digests of all chunks, of a source that has stopped
  verified,   // to the source: all are as sealed
  commit,     // the source has put its intent on record
  owner,      // to the source: and the destination that it owns
  discard,    // the source keeps it
  ask,        // the first on a channel: what became of a session
  answer,     // to who asked
  refusal,
};

struct header {
  static constexpr std::size_t bytes = 40;
  kind what = kind::refusal;
  std::uint64_t body = 0;    // bytes that follow
  std::uint64_t number = 0;  // of what it is about
  image::digest digest;
};

// Bounds on what is believed before memory is taken for it.
inline constexpr std::uint64_t largest_table = std::uint64_t{1} << 30;
inline constexpr std::uint32_t least_chunk = 64 << 10, largest_chunk = 16 << 20;
inline constexpr std::uint32_t most_channels = 64;

void encode(const header &h, std::span<std::byte, header::bytes> into);
// Errors: corrupt (no message of ours), not_supported (another version: value, limit = ours).
result<header> decode_header(std::span<const std::byte, header::bytes> from);

struct hello {
  task_id task;
  std::uint64_t epoch = 0;  // at the source
  std::uint64_t page_bytes = 0;
  std::uint32_t chunk_bytes = 0;
  std::uint32_t channels = 0;  // for data
};
struct layout_message {
  checkpoint::memory_layout layout;
  std::vector<std::uint32_t> pages;  // numbers, for good, of the layout's pages
};
struct question {
  task_id task;
  session_id session;
  std::uint64_t epoch = 0;  // that the destination would have
};
enum class standing : std::uint32_t {
  owns = 1,  // the destination does
  waiting,   // it has all, and would with a commit
  never,     // it does not, and never will
};

std::vector<std::byte> encode(const hello &h);
std::vector<std::byte> encode(const layout_message &l);
std::vector<std::byte> encode(const question &q);
std::vector<std::byte> encode(const session_id &s);
std::vector<std::byte> encode(const std::vector<std::uint64_t> &numbers);
std::vector<std::byte> encode(const std::vector<image::digest> &digests);

// Errors: corrupt. Numbers are not compared with each other.
result<hello> decode_hello(std::span<const std::byte> from);
result<layout_message> decode_layout_message(std::span<const std::byte> from);
result<question> decode_question(std::span<const std::byte> from);
result<session_id> decode_session(std::span<const std::byte> from);
result<std::vector<std::uint64_t>> decode_numbers(std::span<const std::byte> from);
result<std::vector<image::digest>> decode_digests(std::span<const std::byte> from);

// The number of a chunk: its page's, and which of the page's.
constexpr std::uint64_t chunk_number(std::uint32_t page, std::uint32_t index) {
  return std::uint64_t{page} << 32 | index;
}

struct message {
  header head;
  std::vector<std::byte> body;
};

// Messages over a channel, but for chunks. Threads: as the channel.
status send(channel &to, kind what, std::span<const std::byte> body, patience wait,
            std::uint64_t number = 0);
// A body over `limit` is refused before memory is taken for it: corrupt.
result<message> receive(channel &from, std::uint64_t limit, patience wait);
// The same, and it is of that kind: else corrupt, or the other side's refusal as an error of `op`.
result<message> receive(channel &from, kind want, std::uint64_t limit, patience wait,
                        const char *op);

}  // namespace stillmap::migration
