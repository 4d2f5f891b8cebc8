#include "stillmap/checkpoint/control/internal/messages.h"

#include "stillmap/checkpoint/common/internal/wire_format.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::control {
namespace {

using checkpoint::wire_reader;
using checkpoint::wire_writer;

tl::unexpected<error> malformed(const char *what) {
  return make_error(errc::corrupt, "control::decode", what);
}

// Begins a request.
wire_writer begin() {
  wire_writer w;
  w.u32(protocol_version);
  return w;
}

bool is_absolute(const std::string &path) {
  return path.starts_with('/') && path.find('\0') == std::string::npos;
}

void put(wire_writer &w, const std::vector<std::string> &texts) {
  w.u32(texts.size());
  for (const std::string &t : texts) w.text(t);
}

std::vector<std::string> get_texts(wire_reader &r) {
  std::vector<std::string> out(r.count(4));
  for (std::string &t : out) {
    t = r.text();
    if (t.empty()) r.fail();
  }
  return out;
}
std::vector<std::string> get_tags(wire_reader &r) {
  std::vector<std::string> out = get_texts(r);
  if (out.empty()) r.fail();
  return out;
}

result<wire_reader> versioned(bytes_view from) {
  wire_reader r(from);
  const std::uint32_t version = r.u32();
  if (!r.good()) return malformed("the request is too short");
  if (version != protocol_version) {
    return make_error(errc::not_supported, "control::decode",
                      "the client speaks another version of the protocol", version,
                      protocol_version);
  }
  return r;
}

}  // namespace

bytes encode_empty_request() {
  return begin().take();
}

bytes encode(const suspend_request &r) {
  wire_writer w = begin();
  w.text(r.tag);
  w.u32(static_cast<std::uint32_t>(r.store));
  w.text(r.directory);
  return w.take();
}

bytes encode_resume(const std::string &tag) {
  wire_writer w = begin();
  w.text(tag);
  return w.take();
}

bytes encode(const snapshot_request &r) {
  wire_writer w = begin();
  put(w, r.tags);
  w.text(r.path);
  w.text(r.parent);
  w.u32(static_cast<std::uint32_t>(r.compress));
  w.u32(r.replace ? 1 : 0);
  w.u32(r.verify ? 1 : 0);
  return w.take();
}

bytes encode(const handoff_request &r) {
  wire_writer w = begin();
  put(w, r.tags);
  w.text(r.to);
  w.u32(static_cast<std::uint32_t>(r.timeout.count()));
  return w.take();
}

status decode_empty_request(bytes_view from) {
  STILLMAP_ASSIGN_OR_RETURN(const wire_reader r, versioned(from));
  if (!r.done()) return malformed("malformed request");
  return {};
}

result<suspend_request> decode_suspend(bytes_view from) {
  STILLMAP_ASSIGN_OR_RETURN(wire_reader r, versioned(from));
  suspend_request out;
  out.tag = r.text();
  out.store = r.one_of(checkpoint::backing_store::discard);
  out.directory = r.text();
  if (!r.done() || out.tag.empty()) return malformed("malformed request");
  if (!out.directory.empty() && !is_absolute(out.directory)) {
    return malformed("the directory is not an absolute path");
  }
  return out;
}

result<std::string> decode_resume(bytes_view from) {
  STILLMAP_ASSIGN_OR_RETURN(wire_reader r, versioned(from));
  std::string tag = r.text();
  if (!r.done() || tag.empty()) return malformed("malformed request");
  return tag;
}

result<snapshot_request> decode_snapshot(bytes_view from) {
  STILLMAP_ASSIGN_OR_RETURN(wire_reader r, versioned(from));
  snapshot_request out;
  out.tags = get_tags(r);
  out.path = r.text();
  out.parent = r.text();
  out.compress = r.one_of(image::codec::zstd);
  out.replace = r.flag();
  out.verify = r.flag();
  if (!r.done()) return malformed("malformed request");
  if (!is_absolute(out.path) || (!out.parent.empty() && !is_absolute(out.parent))) {
    return malformed("an image is not an absolute path");
  }
  return out;
}

result<handoff_request> decode_handoff(bytes_view from) {
  STILLMAP_ASSIGN_OR_RETURN(wire_reader r, versioned(from));
  handoff_request out;
  out.tags = get_tags(r);
  out.to = r.text();
  out.timeout = std::chrono::milliseconds(r.u32());
  if (!r.done()) return malformed("malformed request");
  if (!is_absolute(out.to) && !out.to.starts_with('@')) {
    return malformed("the receiver's socket is neither an absolute path nor an abstract name");
  }
  return out;
}

bytes encode(const migrate_request &r) {
  wire_writer w = begin();
  put(w, r.tags);
  for (const std::string *s : {&r.to, &r.certificate, &r.key, &r.authorities, &r.name}) w.text(*s);
  put(w, r.fingerprints);
  w.text(r.records);
  w.bytes(r.task.bytes);
  w.u32(static_cast<std::uint32_t>(r.max_downtime.count()));
  w.u32(r.max_rounds);
  w.u32(r.channels);
  w.u32(static_cast<std::uint32_t>(r.on_no_convergence));
  w.u64(r.bytes_per_second);
  w.u32(static_cast<std::uint32_t>(r.timeout.count()));
  w.u32(static_cast<std::uint32_t>(r.resolve_timeout.count()));
  return w.take();
}

result<migrate_request> decode_migrate(bytes_view from) {
  STILLMAP_ASSIGN_OR_RETURN(wire_reader r, versioned(from));
  migrate_request out;
  out.tags = get_tags(r);
  for (std::string *s : {&out.to, &out.certificate, &out.key, &out.authorities, &out.name}) {
    *s = r.text();
  }
  out.fingerprints = get_texts(r);
  out.records = r.text();
  r.bytes(out.task.bytes);
  out.max_downtime = std::chrono::milliseconds(r.u32());
  out.max_rounds = r.u32();
  out.channels = r.u32();
  out.on_no_convergence = r.one_of(migration::no_convergence::cancel);
  out.bytes_per_second = r.u64();
  out.timeout = std::chrono::milliseconds(r.u32());
  out.resolve_timeout = std::chrono::milliseconds(r.u32());
  if (!r.done() || out.to.empty()) return malformed("malformed request");
  for (const std::string *s : {&out.certificate, &out.key, &out.authorities, &out.records}) {
    const bool needed = s == &out.certificate || s == &out.key;
    if ((needed || !s->empty()) && !is_absolute(*s)) {
      return malformed("a certificate, a key or the directory of records is not an absolute path");
    }
  }
  return out;
}

bytes encode(const snapshot_progress &p) {
  wire_writer w;
  w.u32(p.verifying ? 1 : 0);
  w.u64(p.bytes);
  w.u64(p.total_bytes);
  w.u64(p.stored);
  return w.take();
}

result<snapshot_progress> decode_snapshot_progress(bytes_view from) {
  wire_reader r(from);
  snapshot_progress p;
  p.verifying = r.flag();
  p.bytes = r.u64();
  p.total_bytes = r.u64();
  p.stored = r.u64();
  if (!r.done()) return malformed("malformed progress message");
  return p;
}

}  // namespace stillmap::control
