// The answers as bytes: the second half of messages.h.
#include <algorithm>
#include <iterator>

#include "stillmap/checkpoint/common/internal/wire_format.h"
#include "stillmap/checkpoint/control/internal/messages.h"

namespace stillmap::control {
namespace {

using checkpoint::field_reader;
using checkpoint::field_writer;

constexpr std::uint32_t unknown = UINT32_MAX;

tl::unexpected<error> garbled() {
  return make_error(errc::corrupt, "control::decode", "the answer makes no sense");
}

template <std::size_t N, class Tag>
void put(field_writer &w, const image::fixed_bytes<N, Tag> &b) {
  for (const std::byte x : b.bytes) w.number(std::to_integer<std::uint64_t>(x), 1);
}

template <std::size_t N, class Tag>
void get(field_reader &r, image::fixed_bytes<N, Tag> &b) {
  for (std::byte &x : b.bytes) x = static_cast<std::byte>(r.number(1));
}

// Where a code's number is from. 0: nobody the other side knows either.
enum class source : std::uint32_t { conditions, cuda, system, generic };

source source_of(const std::error_code &c) {
  if (c.category() == cuda_category()) return source::cuda;
  if (c.category() == std::system_category()) return source::system;
  if (c.category() == std::generic_category()) return source::generic;
  return source::conditions;
}

std::error_code code_from(source s, int number) {
  if (s == source::cuda) return {number, cuda_category()};
  if (s == source::system) return {number, std::system_category()};
  if (s == source::generic) return {number, std::generic_category()};
  return {number, stillmap_category()};
}

std::string_view cut(const std::string &text) {
  return std::string_view(text).substr(0, field_reader::longest_text);
}

void put(field_writer &w, const failure &f) {
  w.u32(static_cast<std::uint32_t>(source_of(f.code)));
  w.u32(static_cast<std::uint32_t>(f.code.value()));
  w.u64(f.value);
  w.u64(f.limit);
  w.text(cut(f.operation));
  w.text(cut(f.reason));
  w.text(cut(f.text));
}

failure get_failure(field_reader &r) {
  failure f;
  const auto s = r.one_of(source::generic);
  const int number = static_cast<int>(r.u32());
  f.value = r.u64();
  f.limit = r.u64();
  f.operation = r.text();
  f.reason = r.text();
  f.text = r.text();
  f.code = number == 0 ? std::error_code() : code_from(s, number);
  return f;
}

// Seconds and rates are whole numbers on the way: nobody has to believe in a NaN.
std::uint64_t nanoseconds(double seconds) {
  return seconds > 0 ? static_cast<std::uint64_t>(std::min(seconds, 1e9) * 1e9) : 0;
}
double seconds(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

}  // namespace

bytes encode(const process_status &s) {
  // Names are bounded: what was encoded is never larger than what is accepted.
  constexpr std::size_t room = largest_answer / 2;
  field_writer tags;
  std::uint32_t told = 0;
  std::size_t used = 0;
  for (const tag_status &t : s.tags) {
    const std::string_view name = cut(t.tag);
    used += name.size() + 40;
    if (told == most_tags_told || used > room) break;
    tags.text(name);
    tags.u64(t.blocks);
    tags.u64(t.reserved_bytes);
    tags.u64(t.mapped_bytes);
    tags.u64(t.suspended_bytes);
    tags.u32(t.kept_in ? static_cast<std::uint32_t>(*t.kept_in) : unknown);
    ++told;
  }
  field_writer w;
  w.u32(static_cast<std::uint32_t>(s.pid));
  w.text(cut(s.device));
  w.u32(static_cast<std::uint32_t>(s.ordinal));
  for (const unsigned char c : s.uuid) w.number(c, 1);
  w.u64(s.page_bytes);
  w.u64(s.memory_total);
  w.u64(s.memory_free);
  w.u32(static_cast<std::uint32_t>(s.job.what));
  w.u64(static_cast<std::uint64_t>(s.job.since.count()));
  w.u64(s.job.bytes);
  w.u64(s.job.of_bytes);
  w.u32(s.job.step ? static_cast<std::uint32_t>(*s.job.step) : unknown);
  w.u64(s.job.round);
  w.u64(s.job.sent);
  w.u32(s.job.undecided ? 1 : 0);
  w.u64(s.more_tags + (s.tags.size() - told));
  w.u32(told);
  bytes out = w.take();
  const bytes rest = tags.take();
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

result<process_status> decode_status(bytes_view from) {
  field_reader r(from);
  process_status s;
  s.pid = static_cast<pid_t>(r.u32());
  s.device = r.text();
  s.ordinal = static_cast<int>(r.u32());
  for (unsigned char &c : s.uuid) c = static_cast<unsigned char>(r.number(1));
  s.page_bytes = r.u64();
  s.memory_total = r.u64();
  s.memory_free = r.u64();
  s.job.what = r.one_of(request_kind::settle);
  s.job.since = std::chrono::milliseconds(static_cast<std::int64_t>(r.u64() & INT64_MAX));
  s.job.bytes = r.u64();
  s.job.of_bytes = r.u64();
  const std::uint32_t step = r.u32();
  if (step <= static_cast<std::uint32_t>(migration::step::running_recorded)) {
    s.job.step = static_cast<migration::step>(step);
  } else if (step != unknown) {
    r.spoil();
  }
  s.job.round = r.u64();
  s.job.sent = r.u64();
  s.job.undecided = r.flag();
  s.more_tags = r.u64();
  const std::size_t tags = r.count(40);
  for (std::size_t i = 0; i < tags && r.good(); ++i) {
    tag_status t;
    t.tag = r.text();
    t.blocks = r.u64();
    t.reserved_bytes = r.u64();
    t.mapped_bytes = r.u64();
    t.suspended_bytes = r.u64();
    const std::uint32_t kept = r.u32();
    if (kept <= static_cast<std::uint32_t>(checkpoint::keep_in::nothing)) {
      t.kept_in = static_cast<checkpoint::keep_in>(kept);
    } else if (kept != unknown) {
      r.spoil();
    }
    s.tags.push_back(std::move(t));
  }
  if (!r.done()) return garbled();
  return s;
}

bytes encode(const checkpoint::suspended_tag &s) {
  field_writer w;
  w.text(cut(s.tag));
  w.u32(static_cast<std::uint32_t>(s.contents));
  w.u64(s.places);
  w.u64(s.bytes);
  w.u64(s.released.bytes());
  return w.take();
}

result<checkpoint::suspended_tag> decode_suspended(bytes_view from) {
  field_reader r(from);
  checkpoint::suspended_tag s;
  s.tag = r.text();
  s.contents = r.one_of(checkpoint::keep_in::nothing);
  s.places = r.u64();
  s.bytes = r.u64();
  s.released = physical_size(r.u64());
  if (!r.done()) return garbled();
  return s;
}

bytes encode(const image::written &x) {
  field_writer w;
  put(w, x.image);
  put(w, x.root);
  for (const std::uint64_t n :
       {x.file_bytes, x.contents_bytes, x.stored_bytes, x.chunks, x.zero_chunks, x.same_chunks,
        x.parent_chunks, x.compressed_chunks}) {
    w.u64(n);
  }
  w.u32(x.past_page_cache ? 1 : 0);
  return w.take();
}

result<image::written> decode_written(bytes_view from) {
  field_reader r(from);
  image::written x;
  get(r, x.image);
  get(r, x.root);
  for (std::uint64_t *n :
       {&x.file_bytes, &x.contents_bytes, &x.stored_bytes, &x.chunks, &x.zero_chunks,
        &x.same_chunks, &x.parent_chunks, &x.compressed_chunks}) {
    *n = r.u64();
  }
  x.past_page_cache = r.flag();
  if (!r.done()) return garbled();
  return x;
}

bytes encode(const handoff::given_memory &g) {
  field_writer w;
  for (const std::size_t n : {g.blocks, g.places, g.pages, g.bytes}) w.u64(n);
  w.u32(g.unmapped ? 1 : 0);
  w.u32(static_cast<std::uint32_t>(g.to.pid));
  w.u32(g.to.uid);
  w.u32(g.to.gid);
  return w.take();
}

result<handoff::given_memory> decode_given(bytes_view from) {
  field_reader r(from);
  handoff::given_memory g;
  for (std::size_t *n : {&g.blocks, &g.places, &g.pages, &g.bytes}) *n = r.u64();
  g.unmapped = r.flag();
  g.to.pid = static_cast<pid_t>(r.u32());
  g.to.uid = r.u32();
  g.to.gid = r.u32();
  if (!r.done()) return garbled();
  return g;
}

bytes encode(const failure &f) {
  field_writer w;
  put(w, f);
  return w.take();
}
failure decode_refusal(bytes_view from) {
  field_reader r(from);
  failure f = get_failure(r);
  // A refusal without a code would be none.
  if (!r.done() || !f.code) return failure(garbled().value());
  return f;
}

bytes encode(const migration::progress &p) {
  field_writer w;
  w.u32(static_cast<std::uint32_t>(p.at));
  for (const std::uint64_t n :
       {std::uint64_t{p.round}, p.bytes, p.sent, p.round_sent, p.round_bytes}) {
    w.u64(n);
  }
  w.u64(p.bytes_per_second > 0 ? static_cast<std::uint64_t>(std::min(p.bytes_per_second, 1e18))
                               : 0);
  w.u64(nanoseconds(p.expected_pause));
  return w.take();
}

result<migration::progress> decode_migrating(bytes_view from) {
  field_reader r(from);
  migration::progress p;
  p.at = r.one_of(migration::step::running_recorded);
  p.round = r.u64();
  for (std::uint64_t *n : {&p.bytes, &p.sent, &p.round_sent, &p.round_bytes}) *n = r.u64();
  p.bytes_per_second = static_cast<double>(r.u64());
  p.expected_pause = seconds(r.u64());
  if (!r.done()) return garbled();
  return p;
}

bytes encode(const migrated &m) {
  const migration::sent_memory &x = m.sent;
  field_writer w;
  w.u32(static_cast<std::uint32_t>(x.whose));
  put(w, x.task);
  w.u64(x.epoch);
  for (const std::string *s : {&x.to.where, &x.to.name, &x.to.fingerprint}) w.text(cut(*s));
  for (const std::uint64_t n :
       {std::uint64_t{x.rounds}, x.bytes, x.bytes_sent, x.zero_bytes, x.clean_bytes, x.resent}) {
    w.u64(n);
  }
  w.u64(nanoseconds(x.pause));
  w.u64(nanoseconds(x.seconds));
  w.u32(x.unmapped ? 1 : 0);
  put(w, m.why);
  return w.take();
}

result<migrated> decode_migrated(bytes_view from) {
  field_reader r(from);
  migrated m;
  migration::sent_memory &x = m.sent;
  x.whose = r.one_of(migration::whose::undecided);
  get(r, x.task);
  x.epoch = r.u64();
  for (std::string *s : {&x.to.where, &x.to.name, &x.to.fingerprint}) *s = r.text();
  x.rounds = r.u64();
  for (std::uint64_t *n : {&x.bytes, &x.bytes_sent, &x.zero_bytes, &x.clean_bytes, &x.resent}) {
    *n = r.u64();
  }
  x.pause = seconds(r.u64());
  x.seconds = seconds(r.u64());
  x.unmapped = r.flag();
  m.why = get_failure(r);
  // Where it is not the destination's, it is known why.
  if (!r.done() || (x.whose != migration::whose::destination && !m.why.code)) return garbled();
  return m;
}

bytes encode(request_kind aborted) {
  field_writer w;
  w.u32(static_cast<std::uint32_t>(aborted));
  return w.take();
}

result<request_kind> decode_aborted(bytes_view from) {
  field_reader r(from);
  const auto k = r.one_of(request_kind::settle);
  if (!r.done()) return garbled();
  return k;
}

}  // namespace stillmap::control
