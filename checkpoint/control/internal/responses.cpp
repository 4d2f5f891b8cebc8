// Responses as bytes: the second half of messages.h.
#include <algorithm>
#include <iterator>

#include "stillmap/checkpoint/common/internal/wire_format.h"
#include "stillmap/checkpoint/control/internal/messages.h"

namespace stillmap::control {
namespace {

using checkpoint::wire_reader;
using checkpoint::wire_writer;

constexpr std::uint32_t unknown = UINT32_MAX;

tl::unexpected<error> malformed() {
  return make_error(errc::corrupt, "control::decode", "malformed response");
}

template <std::size_t N, class Tag>
void put(wire_writer &w, const image::fixed_bytes<N, Tag> &b) {
  for (const std::byte x : b.bytes) w.number(std::to_integer<std::uint64_t>(x), 1);
}

template <std::size_t N, class Tag>
void get(wire_reader &r, image::fixed_bytes<N, Tag> &b) {
  for (std::byte &x : b.bytes) x = static_cast<std::byte>(r.number(1));
}

// The category of an error code. Codes of other categories are sent as `stillmap`.
enum class category : std::uint32_t { stillmap, cuda, system, generic };

category category_of(const std::error_code &c) {
  if (c.category() == cuda_category()) return category::cuda;
  if (c.category() == std::system_category()) return category::system;
  if (c.category() == std::generic_category()) return category::generic;
  return category::stillmap;
}

std::error_code code_from(category c, int number) {
  if (c == category::cuda) return {number, cuda_category()};
  if (c == category::system) return {number, std::system_category()};
  if (c == category::generic) return {number, std::generic_category()};
  return {number, stillmap_category()};
}

std::string_view truncated(const std::string &text) {
  return std::string_view(text).substr(0, wire_reader::longest_text);
}

void put(wire_writer &w, const error &e) {
  w.u32(static_cast<std::uint32_t>(category_of(e.code)));
  w.u32(static_cast<std::uint32_t>(e.code.value()));
  w.u32(static_cast<std::uint32_t>(e.unit));
  w.u64(e.value);
  w.u64(e.limit);
  w.text(truncated(e.code ? e.message() : std::string()));
}

// Without a code: no error.
error get_error(wire_reader &r) {
  const auto from = r.one_of(category::generic);
  const int number = static_cast<int>(r.u32());
  error e{{}, "control::client", "the request failed in the controlled process"};
  e.unit = r.one_of(error_unit::items);
  e.value = r.u64();
  e.limit = r.u64();
  std::string message = r.text();
  if (number == 0) return {};
  // One line, and safe for a terminal.
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  e.code = code_from(from, number);
  return e.with({.cause = std::move(message)});
}

// Durations and rates are sent as integers, so that no NaN arrives.
std::uint64_t nanoseconds(std::chrono::duration<double> d) {
  return d.count() > 0 ? static_cast<std::uint64_t>(std::min(d.count(), 1e9) * 1e9) : 0;
}
std::chrono::duration<double> seconds(std::uint64_t nanoseconds) {
  return std::chrono::duration<double>(static_cast<double>(nanoseconds) / 1e9);
}

}  // namespace

bytes encode(const process_status &s) {
  // Never more than a client accepts.
  constexpr std::size_t room = max_response_bytes / 2;
  wire_writer tags;
  std::uint32_t count = 0;
  std::size_t used = 0;
  for (const tag_status &t : s.tags) {
    const std::string_view name = truncated(t.tag);
    used += name.size() + 40;
    if (count == max_status_tags || used > room) break;
    tags.text(name);
    tags.u64(t.blocks);
    tags.u64(t.reserved_bytes);
    tags.u64(t.mapped_bytes);
    tags.u64(t.suspended_bytes);
    tags.u32(t.store ? static_cast<std::uint32_t>(*t.store) : unknown);
    ++count;
  }
  wire_writer w;
  w.u32(static_cast<std::uint32_t>(s.pid));
  w.text(truncated(s.device));
  w.u32(static_cast<std::uint32_t>(s.ordinal));
  for (const unsigned char c : s.uuid) w.number(c, 1);
  w.u64(s.page_bytes);
  w.u64(s.memory_total);
  w.u64(s.memory_free);
  w.u32(static_cast<std::uint32_t>(s.job.request));
  w.u64(static_cast<std::uint64_t>(s.job.elapsed.count()));
  w.u64(s.job.bytes);
  w.u64(s.job.total_bytes);
  w.u32(s.job.step ? static_cast<std::uint32_t>(*s.job.step) : unknown);
  w.u64(s.job.round);
  w.u64(s.job.bytes_sent);
  w.u32(s.job.in_doubt ? 1 : 0);
  w.u64(s.omitted_tags + (s.tags.size() - count));
  w.u32(count);
  bytes out = w.take();
  const bytes rest = tags.take();
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

result<process_status> decode_status(bytes_view from) {
  wire_reader r(from);
  process_status s;
  s.pid = static_cast<pid_t>(r.u32());
  s.device = r.text();
  s.ordinal = static_cast<int>(r.u32());
  for (unsigned char &c : s.uuid) c = static_cast<unsigned char>(r.number(1));
  s.page_bytes = r.u64();
  s.memory_total = r.u64();
  s.memory_free = r.u64();
  s.job.request = r.one_of(request_kind::resolve);
  s.job.elapsed = std::chrono::milliseconds(static_cast<std::int64_t>(r.u64() & INT64_MAX));
  s.job.bytes = r.u64();
  s.job.total_bytes = r.u64();
  const std::uint32_t step = r.u32();
  if (step <= static_cast<std::uint32_t>(migration::step::running_recorded)) {
    s.job.step = static_cast<migration::step>(step);
  } else if (step != unknown) {
    r.fail();
  }
  s.job.round = r.u64();
  s.job.bytes_sent = r.u64();
  s.job.in_doubt = r.flag();
  s.omitted_tags = r.u64();
  const std::size_t tags = r.count(40);
  for (std::size_t i = 0; i < tags && r.good(); ++i) {
    tag_status t;
    t.tag = r.text();
    t.blocks = r.u64();
    t.reserved_bytes = r.u64();
    t.mapped_bytes = r.u64();
    t.suspended_bytes = r.u64();
    const std::uint32_t store = r.u32();
    if (store <= static_cast<std::uint32_t>(checkpoint::backing_store::discard)) {
      t.store = static_cast<checkpoint::backing_store>(store);
    } else if (store != unknown) {
      r.fail();
    }
    s.tags.push_back(std::move(t));
  }
  if (!r.done()) return malformed();
  return s;
}

bytes encode(const checkpoint::suspended_tag &s) {
  wire_writer w;
  w.text(truncated(s.tag));
  w.u32(static_cast<std::uint32_t>(s.store));
  w.u64(s.places);
  w.u64(s.bytes);
  w.u64(s.released.bytes());
  return w.take();
}

result<checkpoint::suspended_tag> decode_suspended(bytes_view from) {
  wire_reader r(from);
  checkpoint::suspended_tag s;
  s.tag = r.text();
  s.store = r.one_of(checkpoint::backing_store::discard);
  s.places = r.u64();
  s.bytes = r.u64();
  s.released = physical_size(r.u64());
  if (!r.done()) return malformed();
  return s;
}

bytes encode(const image::written &x) {
  wire_writer w;
  put(w, x.image);
  put(w, x.root);
  for (const std::uint64_t n :
       {x.file_bytes, x.contents_bytes, x.stored_bytes, x.chunks, x.zero_chunks, x.same_chunks,
        x.parent_chunks, x.compressed_chunks}) {
    w.u64(n);
  }
  w.u32(x.direct_io ? 1 : 0);
  return w.take();
}

result<image::written> decode_written(bytes_view from) {
  wire_reader r(from);
  image::written x;
  get(r, x.image);
  get(r, x.root);
  for (std::uint64_t *n :
       {&x.file_bytes, &x.contents_bytes, &x.stored_bytes, &x.chunks, &x.zero_chunks,
        &x.same_chunks, &x.parent_chunks, &x.compressed_chunks}) {
    *n = r.u64();
  }
  x.direct_io = r.flag();
  if (!r.done()) return malformed();
  return x;
}

bytes encode(const handoff::sent_memory &s) {
  wire_writer w;
  for (const std::size_t n : {s.blocks, s.places, s.pages, s.bytes}) w.u64(n);
  w.u32(s.unmapped ? 1 : 0);
  w.u32(static_cast<std::uint32_t>(s.to.pid));
  w.u32(s.to.uid);
  w.u32(s.to.gid);
  return w.take();
}

result<handoff::sent_memory> decode_handed_off(bytes_view from) {
  wire_reader r(from);
  handoff::sent_memory s;
  for (std::size_t *n : {&s.blocks, &s.places, &s.pages, &s.bytes}) *n = r.u64();
  s.unmapped = r.flag();
  s.to.pid = static_cast<pid_t>(r.u32());
  s.to.uid = r.u32();
  s.to.gid = r.u32();
  if (!r.done()) return malformed();
  return s;
}

bytes encode(const error &e) {
  wire_writer w;
  put(w, e);
  return w.take();
}

error decode_refusal(bytes_view from) {
  wire_reader r(from);
  const error e = get_error(r);
  return r.done() && e.code ? e : malformed().value();
}

bytes encode(const migration::progress &p) {
  wire_writer w;
  w.u32(static_cast<std::uint32_t>(p.step));
  for (const std::uint64_t n :
       {std::uint64_t{p.round}, p.bytes, p.bytes_sent, p.round_sent, p.round_bytes}) {
    w.u64(n);
  }
  w.u64(p.bytes_per_second > 0 ? static_cast<std::uint64_t>(std::min(p.bytes_per_second, 1e18))
                               : 0);
  w.u64(nanoseconds(p.expected_downtime));
  return w.take();
}

result<migration::progress> decode_migration_progress(bytes_view from) {
  wire_reader r(from);
  migration::progress p;
  p.step = r.one_of(migration::step::running_recorded);
  p.round = r.u64();
  for (std::uint64_t *n : {&p.bytes, &p.bytes_sent, &p.round_sent, &p.round_bytes}) *n = r.u64();
  p.bytes_per_second = static_cast<double>(r.u64());
  p.expected_downtime = seconds(r.u64());
  if (!r.done()) return malformed();
  return p;
}

bytes encode(const migration::sent_memory &s) {
  wire_writer w;
  w.u32(static_cast<std::uint32_t>(s.owner));
  put(w, s.task);
  w.u64(s.epoch);
  for (const std::string *t : {&s.to.address, &s.to.name, &s.to.fingerprint}) w.text(truncated(*t));
  for (const std::uint64_t n : {std::uint64_t{s.rounds}, s.bytes, s.bytes_sent, s.zero_bytes,
                                s.unchanged_bytes, s.resent_chunks}) {
    w.u64(n);
  }
  w.u64(nanoseconds(s.downtime));
  w.u64(nanoseconds(s.elapsed));
  w.u32(s.unmapped ? 1 : 0);
  put(w, s.failure.value_or(error{}));
  return w.take();
}

result<migration::sent_memory> decode_migrated(bytes_view from) {
  wire_reader r(from);
  migration::sent_memory s;
  s.owner = r.one_of(migration::owner::in_doubt);
  get(r, s.task);
  s.epoch = r.u64();
  for (std::string *t : {&s.to.address, &s.to.name, &s.to.fingerprint}) *t = r.text();
  s.rounds = r.u64();
  for (std::uint64_t *n :
       {&s.bytes, &s.bytes_sent, &s.zero_bytes, &s.unchanged_bytes, &s.resent_chunks}) {
    *n = r.u64();
  }
  s.downtime = seconds(r.u64());
  s.elapsed = seconds(r.u64());
  s.unmapped = r.flag();
  if (error e = get_error(r); e.code) s.failure = std::move(e);
  // Empty exactly if the destination is the owner.
  if (!r.done() || s.failure.has_value() == (s.owner == migration::owner::destination)) {
    return malformed();
  }
  return s;
}

bytes encode(request_kind aborted) {
  wire_writer w;
  w.u32(static_cast<std::uint32_t>(aborted));
  return w.take();
}

result<request_kind> decode_aborted(bytes_view from) {
  wire_reader r(from);
  const auto k = r.one_of(request_kind::resolve);
  if (!r.done()) return malformed();
  return k;
}

}  // namespace stillmap::control
