#include "stillmap/checkpoint/control/internal/messages.h"

#include <algorithm>
#include <concepts>

#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/utf8.h"

namespace stillmap::control {
namespace {

using checkpoint::backing_store;
using checkpoint::field_of;
using checkpoint::up_to;
using checkpoint::wire_reader;
using checkpoint::wire_writer;

template <class T>
concept request = std::same_as<T, empty_request> || std::same_as<T, suspend_request> ||
    std::same_as<T, resume_request> || std::same_as<T, snapshot_request> ||
    std::same_as<T, handoff_request> || std::same_as<T, migrate_request> ||
    std::same_as<T, restore_request>;

tl::unexpected<error> malformed(const char *what) {
  return make_error(errc::corrupt, what);
}

// The fields of each message, in the order of docs/control_protocol.md.

template <class Wire>
void fields(Wire &, field_of<Wire, empty_request> &) {}

template <class Wire>
void fields(Wire &w, field_of<Wire, suspend_request> &r) {
  w(r.tag, r.all, up_to(r.store, backing_store::discard), r.directory);
  w.check(r.tag.empty() == r.all);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, resume_request> &r) {
  w(r.tag, r.all);
  w.check(r.tag.empty() == r.all);
}

// A list of texts, none of them empty.
template <class Wire>
void texts(Wire &w, field_of<Wire, std::vector<std::string>> &list) {
  w.elements(list, w.count(list, 4), [&](auto &text) {
    w(text);
    w.check(!text.empty());
  });
}

// The tags that a request is about: some, or all.
template <class Wire, class Request>
void tags(Wire &w, Request &r) {
  w(r.all);
  texts(w, r.tags);
  w.check(r.tags.empty() == r.all);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, snapshot_request> &r) {
  tags(w, r);
  w(r.path, r.parent, up_to(r.compress, image::codec::zstd), r.replace, r.force, r.verify, r.key,
    r.sign_with);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, handoff_request> &r) {
  tags(w, r);
  w(r.to, r.timeout);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, migrate_request> &r) {
  tags(w, r);
  w(r.to, r.certificate, r.key, r.authorities, r.name);
  texts(w, r.fingerprints);
  w(r.records, r.task.bytes, r.max_downtime, r.max_rounds, r.channels,
    up_to(r.on_no_convergence, migration::no_convergence::cancel), r.bytes_per_second, r.timeout,
    r.resolve_timeout, r.group.bytes, r.decider, r.group_timeout, r.only_tls);
  w.check(!r.to.empty() && r.group.is_zero() == r.decider.empty());
}

template <class Wire>
void fields(Wire &w, field_of<Wire, restore_request> &r) {
  tags(w, r);
  w(r.path, r.key);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, process_status> &s) {
  w(s.pid, s.device, s.ordinal, s.uuid, s.page_bytes, s.memory_total, s.memory_free);
  auto elapsed = static_cast<std::uint64_t>(s.job.elapsed.count());
  w(up_to(s.job.request, request_kind::restore), elapsed, s.job.bytes, s.job.total_bytes,
    up_to(s.job.step, migration::step::running_recorded), s.job.round, s.job.bytes_sent,
    s.job.in_doubt, s.omitted_tags, s.omitted_mapped_bytes, s.omitted_suspended_bytes);
  if constexpr (Wire::reads) {
    s.job.elapsed = std::chrono::milliseconds(static_cast<std::int64_t>(elapsed & INT64_MAX));
  }
  w(s.published_bytes);
  bool has_memory = s.memory.has_value();
  w(has_memory);
  if constexpr (Wire::reads) {
    if (has_memory) s.memory.emplace();
  }
  if (s.memory) {
    w(s.memory->allocated, s.memory->cached, s.memory->evictable, s.memory->limit, s.memory->quota);
  }
  w.elements(s.tags, w.count(s.tags, 40), [&](auto &t) {
    w(t.tag, t.blocks, t.reserved_bytes, t.mapped_bytes, t.suspended_bytes,
      up_to(t.store, backing_store::discard));
  });
}

template <class Wire>
void fields(Wire &w, field_of<Wire, checkpoint::suspended_tag> &s) {
  std::uint64_t released = s.released.bytes();
  w(s.tag, up_to(s.store, backing_store::discard), s.places, s.bytes, released);
  if constexpr (Wire::reads) s.released = physical_size(released);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, image::written> &x) {
  w(x.image.bytes, x.root.bytes, x.file_bytes, x.contents_bytes, x.stored_bytes, x.chunks,
    x.zero_chunks, x.same_chunks, x.parent_chunks, x.compressed_chunks, x.direct_io);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, snapshot::restored_contents> &x) {
  w(x.image.bytes, x.pages, x.bytes);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, handoff::sent_memory> &s) {
  w(s.blocks, s.places, s.pages, s.bytes, s.unmapped, s.to.pid, s.to.uid, s.to.gid);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, snapshot_progress> &p) {
  w(p.verifying, p.bytes, p.total_bytes, p.stored);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, migration::progress> &p) {
  w(up_to(p.step, migration::step::running_recorded), p.round, p.bytes, p.bytes_sent, p.round_sent,
    p.round_bytes, p.bytes_per_second, p.expected_downtime, p.expected_scan, p.stopping);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, request_kind> &aborted) {
  w(up_to(aborted, request_kind::restore));
}

// The category of an error code. Codes of other categories are sent as `stillmap`.
enum class category : std::uint32_t { stillmap, cuda, system, generic };

const std::error_category &category_of(category c) {
  switch (c) {
    case category::cuda:
      return cuda_category();
    case category::system:
      return std::system_category();
    case category::generic:
      return std::generic_category();
    case category::stillmap:
      break;
  }
  return stillmap_category();
}

void put(wire_writer &w, const error &e) {
  auto from = category::stillmap;
  for (const category c : {category::cuda, category::system, category::generic}) {
    if (e.code.category() == category_of(c)) from = c;
  }
  w(up_to(from, category::generic), e.code.value(), up_to(e.unit, error_unit::items), e.value,
    e.limit, e.code ? e.message() : std::string());
}

// Without a code: no error.
error get_error(wire_reader &r) {
  error e{{}, operation_scope::current(), "the request failed in the controlled process"};
  auto from = category::stillmap;
  int number = 0;
  std::string message;
  r(up_to(from, category::generic), number, up_to(e.unit, error_unit::items), e.value, e.limit,
    message);
  if (number == 0) return {};
  e.code = {number, category_of(from)};
  return e.with({.cause = printable(message)});
}

template <class Wire>
void fields(Wire &w, field_of<Wire, migration::sent_memory> &s) {
  w(up_to(s.owner, migration::owner::in_doubt), s.task.bytes, s.epoch, s.to.address, s.to.name,
    s.to.fingerprint, s.rounds, s.bytes, s.bytes_sent, s.zero_bytes, s.unchanged_bytes,
    s.resent_chunks, s.downtime, s.elapsed, s.unmapped, s.data_transport);
  for (auto *const e : {&s.failure, &s.data_fallback}) {
    if constexpr (Wire::reads) {
      if (error why = get_error(w); why.code) *e = std::move(why);
    } else {
      put(w, e->value_or(error{}));
    }
  }
  // Empty exactly if the destination is the owner.
  w.check(s.failure.has_value() != (s.owner == migration::owner::destination));
}

bool is_absolute(const std::string &path) {
  return path.starts_with('/') && path.find('\0') == std::string::npos;
}

// What the requests require besides.
status check(const auto &) {
  return {};
}

status check(const suspend_request &r) {
  if (r.directory.empty() || is_absolute(r.directory)) return {};
  return malformed("the directory is not an absolute path");
}

status check(const snapshot_request &r) {
  if (!is_absolute(r.path)) return malformed("an image is not an absolute path");
  for (const std::string *s : {&r.parent, &r.key, &r.sign_with}) {
    if (!s->empty() && !is_absolute(*s)) {
      return malformed("a parent or a key file is not an absolute path");
    }
  }
  return {};
}

status check(const restore_request &r) {
  if (!is_absolute(r.path)) return malformed("an image is not an absolute path");
  if (r.key.empty() || is_absolute(r.key)) return {};
  return malformed("a key file is not an absolute path");
}

status check(const handoff_request &r) {
  if (is_absolute(r.to) || r.to.starts_with('@')) return {};
  return malformed("the receiver's socket is neither an absolute path nor an abstract name");
}

status check(const migrate_request &r) {
  for (const std::string *s : {&r.certificate, &r.key, &r.authorities, &r.records}) {
    const bool needed = s == &r.certificate || s == &r.key;
    if ((needed || !s->empty()) && !is_absolute(*s)) {
      return malformed("a certificate, a key or the directory of records is not an absolute path");
    }
  }
  return {};
}

}  // namespace

template <class T>
bytes encode(const T &message) {
  // Texts of requests are sent whole, so that a server refuses those that are too long.
  wire_writer w(request<T> ? SIZE_MAX : wire_reader::longest_text);
  if constexpr (request<T>) w(protocol_version);
  fields(w, message);
  return w.take();
}

template <class T>
result<T> decode(bytes_view from) {
  wire_reader r(from);
  if constexpr (request<T>) {
    const auto version = r.read<std::uint32_t>();
    if (!r.good()) return malformed("the request is too short");
    if (version != protocol_version) {
      return make_error(errc::not_supported, "the client speaks another version of the protocol",
                        version, protocol_version);
    }
  }
  T message{};
  fields(r, message);
  if (!r.done()) return malformed(request<T> ? "malformed request" : "malformed response");
  STILLMAP_RETURN_IF_ERROR(check(message));
  return message;
}

bytes encode(process_status s) {
  // Never more than a client accepts.
  std::size_t room = max_response_bytes / 2, fit = 0;
  for (; fit < std::min(s.tags.size(), max_status_tags); ++fit) {
    const std::size_t needed = std::min(s.tags[fit].tag.size(), wire_reader::longest_text) + 40;
    if (needed > room) break;
    room -= needed;
  }
  for (std::size_t i = fit; i < s.tags.size(); ++i) {
    s.omitted_tags += 1;
    s.omitted_mapped_bytes += s.tags[i].mapped_bytes;
    s.omitted_suspended_bytes += s.tags[i].suspended_bytes;
  }
  s.tags.resize(fit);
  return encode<process_status>(s);
}

bytes encode(const error &e) {
  wire_writer w(wire_reader::longest_text);
  put(w, e);
  return w.take();
}

error decode_refusal(bytes_view from) {
  wire_reader r(from);
  const error e = get_error(r);
  return r.done() && e.code ? e : malformed("malformed response").value();
}

#define STILLMAP_MESSAGE(T)            \
  template bytes encode<T>(const T &); \
  template result<T> decode<T>(bytes_view)
STILLMAP_MESSAGE(empty_request);
STILLMAP_MESSAGE(suspend_request);
STILLMAP_MESSAGE(resume_request);
STILLMAP_MESSAGE(snapshot_request);
STILLMAP_MESSAGE(handoff_request);
STILLMAP_MESSAGE(migrate_request);
STILLMAP_MESSAGE(restore_request);
STILLMAP_MESSAGE(process_status);
STILLMAP_MESSAGE(checkpoint::suspended_tag);
STILLMAP_MESSAGE(image::written);
STILLMAP_MESSAGE(snapshot::restored_contents);
STILLMAP_MESSAGE(handoff::sent_memory);
STILLMAP_MESSAGE(snapshot_progress);
STILLMAP_MESSAGE(migration::progress);
STILLMAP_MESSAGE(migration::sent_memory);
STILLMAP_MESSAGE(request_kind);

}  // namespace stillmap::control
