#include "tests/checkpoint/migration/fuzz_entry.h"

#include <algorithm>

#include "stillmap/checkpoint/migration/internal/wire.h"
#include "stillmap/checkpoint/migration/record.h"
#include "tests/checkpoint/migration/hostile_source.h"
#include "tests/support/far_away.h"
#include "tests/support/fuzz_device.h"

namespace stillmap::migration {
namespace {

using bytes_view = std::span<const std::byte>;
constexpr std::size_t granularity = std::size_t{2} << 20;
constexpr std::uint32_t fuzzed_chunk_bytes = 64 << 10;

bool alike(const std::vector<std::byte> &a, bytes_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// An accepted message encodes to the same bytes; a refused one has a reason.
template <class T>
std::string there_and_back(const result<T> &r, bytes_view from, const char *what) {
  if (!r) {
    return r.error().is(errc::corrupt) && r.error().reason[0] != '\0'
               ? ""
               : std::string(what) + " was refused without a reason";
  }
  return alike(encode(*r), from) ? "" : std::string(what) + " is not what was read";
}

std::string fuzz_header(bytes_view from) {
  if (from.size() < header::bytes) return "";
  const auto h = decode_header(from.first<header::bytes>());
  if (!h) return h.error().reason[0] != '\0' ? "" : "a header was refused without a reason";
  std::vector<std::byte> again(header::bytes);
  encode(*h, std::span(again).first<header::bytes>());
  return alike(again, from.first<header::bytes>()) ? "" : "a header is not what was read";
}

std::string fuzz_layout(bytes_view from) {
  const auto l = decode_layout_message(from);
  if (!l) return l.error().is(errc::corrupt) ? "" : "a layout was refused without a reason";
  if (l->pages.size() != l->layout.pages.size() || 4 * l->pages.size() > from.size()) {
    return "more came out of a layout than was in it";
  }
  const auto again = decode_layout_message(encode(*l));
  if (!again || again->pages != l->pages) return "a layout does not survive being written";
  [[maybe_unused]] const status s = checkpoint::check(l->layout, granularity);
  return "";
}

std::string fuzz_numbers(bytes_view from) {
  std::string wrong = there_and_back(decode_numbers(from), from, "a list of numbers");
  if (wrong.empty()) wrong = there_and_back(decode_digests(from), from, "a list of digests");
  if (wrong.empty()) wrong = there_and_back(decode_session(from), from, "a session");
  if (wrong.empty()) wrong = there_and_back(decode_welcome(from), from, "a welcome");
  return wrong;
}

std::string fuzz_record(bytes_view from) {
  std::string text(reinterpret_cast<const char *>(from.data()), from.size());
  [[maybe_unused]] const auto as_it_is = parse_record(text);
  text += "seal " + image::sha256_of(std::as_bytes(std::span(text))).text() + '\n';
  const auto r = parse_record(text);
  if (!r) return "";
  const auto again = parse_record(to_text(*r));
  if (!again || again->task != r->task || again->epoch != r->epoch || again->state != r->state ||
      again->session != r->session || again->contents != r->contents) {
    return "a record does not survive being written";
  }
  return "";
}

hello a_hello(std::uint32_t with_channels) {
  return {task_id{}, 7, granularity, fuzzed_chunk_bytes, with_channels, {}};
}

layout_message a_layout(std::size_t pages, device_address at) {
  layout_message l;
  l.layout.blocks = {{{at, (pages + 1) * granularity}, "weights"}};
  physical_properties here;
  here.location = on_device(checkpoint::memory_layout::own_device);
  l.layout.pages.assign(pages, {granularity, here});
  l.layout.access = {{{on_device(checkpoint::memory_layout::own_device), access_mode::read_write}}};
  for (std::uint32_t i = 0; i < pages; ++i) {
    l.layout.places.push_back({at + i * granularity, i, 0});
    l.pages.push_back(i + 3);
  }
  return l;
}

// The first `steps` messages of a session that sends a page of zeros.
std::vector<std::byte> a_session(unsigned steps, bool again) {
  hostile_script s;
  const auto next = [&] { return steps != 0 && steps-- != 0; };
  const device_address at(stillmap::testing::far_away);
  if (next()) s.message(0, kind::hello, 0, false, encode(a_hello(1)));
  if (next()) s.message(0, kind::layout, 0, false, encode(a_layout(1, at)));
  if (next()) s.message(1, kind::join, 0, false, encode(session_id{}));
  if (next()) {
    for (std::uint32_t i = 0; i < granularity / fuzzed_chunk_bytes; ++i) {
      if (i == 1) {
        s.chunk_of_zeros(1, chunk_number(3, i));
      } else {
        s.message(1, kind::zeros, chunk_number(3, i), true, {});
      }
    }
    s.message(1, kind::round_end, 1, false, {});
  }
  if (again) s.message(0, kind::layout, 0, false, encode(a_layout(2, at)));
  if (next()) {
    s.message(
        0, kind::seal, 0, false,
        encode(std::vector<image::digest>(granularity / fuzzed_chunk_bytes,
                                          image::digest_of_zeros({}, fuzzed_chunk_bytes).value())));
  }
  if (next())
    s.message(2, kind::query, 0, false, encode(outcome_query{task_id{}, session_id{}, 8}));
  if (next())
    s.message(0, kind::commit, 0, false, encode(outcome_query{task_id{}, session_id{}, 8}));
  if (next())
    s.message(3, kind::query, 0, false, encode(outcome_query{task_id{}, session_id{}, 8}));
  if (again) s.message(0, kind::discard, 0, false, {});
  return s.bytes();
}

// A session that loses its control channel while it awaits the commit, begins another round, and is
// asked for its outcome.
std::vector<std::byte> a_session_without_control() {
  std::vector<std::byte> all = a_session(5, false);
  hostile_script s;
  s.message(0, kind::prepared, 0, false, {});  // not a source's message: ends the channel
  s.message(1, kind::round_end, 2, false, {});
  s.message(2, kind::query, 0, false, encode(outcome_query{task_id{}, session_id{}, 8}));
  all.insert(all.end(), s.bytes().begin(), s.bytes().end());
  return all;
}

}  // namespace

std::string fuzz_migration(const device &d, const std::uint8_t *data, std::size_t size) {
  if (size == 0) return "";
  const bytes_view rest(reinterpret_cast<const std::byte *>(data + 1), size - 1);
  switch (static_cast<fuzz_mode>(data[0] % static_cast<unsigned>(fuzz_mode::count))) {
    case fuzz_mode::header:
      return fuzz_header(rest);
    case fuzz_mode::hello:
      return there_and_back(decode_hello(rest), rest, "a greeting");
    case fuzz_mode::layout:
      return fuzz_layout(rest);
    case fuzz_mode::outcome_query:
      return there_and_back(decode_outcome_query(rest), rest, "a question");
    case fuzz_mode::numbers:
      return fuzz_numbers(rest);
    case fuzz_mode::record:
      return fuzz_record(rest);
    default:
      return run_hostile_source(d, rest).wrong;
  }
}

std::vector<stillmap::testing::fuzz_input> fuzz_corpus() {
  std::vector<stillmap::testing::fuzz_input> inputs;
  const auto add = [&](fuzz_mode mode, bytes_view bytes) {
    inputs.push_back(stillmap::testing::fuzz_input_of(static_cast<std::uint8_t>(mode), bytes));
  };
  std::vector<std::byte> head(header::bytes);
  encode(header{kind::chunk, fuzzed_chunk_bytes, 5, {}}, std::span(head).first<header::bytes>());
  add(fuzz_mode::header, head);
  add(fuzz_mode::hello, encode(a_hello(2)));
  add(fuzz_mode::layout, encode(a_layout(3, device_address(stillmap::testing::far_away))));
  add(fuzz_mode::outcome_query, encode(outcome_query{task_id{}, session_id{}, 9}));
  add(fuzz_mode::numbers, encode(std::vector<std::uint64_t>{1, 2, 3, 4}));
  add(fuzz_mode::numbers, encode(welcome_message{session_id{}, {"ucx", "127.0.0.1:4712"}}));
  std::string text = to_text(record{{}, 5, ownership::intent, {}, "other:1 the other", {}});
  text.resize(text.rfind("seal "));
  add(fuzz_mode::record, std::as_bytes(std::span(text)));
  for (unsigned steps = 1; steps <= 8; ++steps) {
    add(fuzz_mode::session, a_session(steps, false));
    add(fuzz_mode::session, a_session(steps, true));
  }
  add(fuzz_mode::session, a_session_without_control());
  return inputs;
}

}  // namespace stillmap::migration

namespace {

std::string fuzz_alone(const std::uint8_t *data, std::size_t size) {
  return stillmap::migration::fuzz_migration(stillmap::testing::fuzz_device(), data, size);
}

}  // namespace

STILLMAP_FUZZ_ENTRY("migration", fuzz_alone, stillmap::migration::fuzz_corpus)
