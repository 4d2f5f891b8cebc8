#include "stillmap/checkpoint/control/internal/messages.h"

#include "stillmap/checkpoint/common/internal/wire_format.h"

namespace stillmap::control {
namespace {

using checkpoint::field_reader;
using checkpoint::field_writer;

tl::unexpected<error> garbled(const char *what) {
  return make_error(errc::corrupt, "control::decode", what);
}

field_writer begun() {
  field_writer w;
  w.u32(protocol_version);
  return w;
}

// Of what a request must say to make sense, apart from its bytes.
bool is_absolute(const std::string &path) {
  return path.starts_with('/') && path.find('\0') == std::string::npos;
}

void put(field_writer &w, const std::vector<std::string> &texts) {
  w.u32(texts.size());
  for (const std::string &t : texts) w.text(t);
}

std::vector<std::string> get_texts(field_reader &r) {
  std::vector<std::string> out(r.count(4));
  for (std::string &t : out) {
    t = r.text();
    if (t.empty()) r.spoil();
  }
  return out;
}
std::vector<std::string> get_tags(field_reader &r) {
  std::vector<std::string> out = get_texts(r);
  if (out.empty()) r.spoil();
  return out;
}

result<field_reader> versioned(bytes_view from) {
  field_reader r(from);
  const std::uint32_t version = r.u32();
  if (!r.good()) return garbled("the request is too short");
  if (version != protocol_version) {
    return make_error(errc::not_supported, "control::decode",
                  "the request is of another version of the protocol", version, protocol_version);
  }
  return r;
}

}  // namespace

bytes encode_status_request() {
  return begun().take();
}
bytes encode_abort_request() {
  return begun().take();
}
bytes encode_settle_request() {
  return begun().take();
}

bytes encode(const suspend_request &r) {
  field_writer w = begun();
  w.text(r.tag);
  w.u32(static_cast<std::uint32_t>(r.contents));
  w.text(r.directory);
  return w.take();
}

bytes encode_resume(const std::string &tag) {
  field_writer w = begun();
  w.text(tag);
  return w.take();
}

bytes encode(const snapshot_request &r) {
  field_writer w = begun();
  put(w, r.tags);
  w.text(r.path);
  w.text(r.parent);
  w.u32(static_cast<std::uint32_t>(r.compress));
  w.u32(r.replace ? 1 : 0);
  w.u32(r.verify ? 1 : 0);
  return w.take();
}

bytes encode(const give_request &r) {
  field_writer w = begun();
  put(w, r.tags);
  w.text(r.to);
  w.u32(static_cast<std::uint32_t>(r.wait.count()));
  return w.take();
}

status decode_status_request(bytes_view from) {
  const auto r = versioned(from);
  if (!r) return tl::unexpected(r.error());
  if (!r->done()) return garbled("the request makes no sense");
  return {};
}
status decode_abort_request(bytes_view from) {
  return decode_status_request(from);
}
status decode_settle_request(bytes_view from) {
  return decode_status_request(from);
}

result<suspend_request> decode_suspend(bytes_view from) {
  auto r = versioned(from);
  if (!r) return tl::unexpected(r.error());
  suspend_request out;
  out.tag = r->text();
  out.contents = r->one_of(checkpoint::keep_in::nothing);
  out.directory = r->text();
  if (!r->done() || out.tag.empty()) return garbled("the request makes no sense");
  if (!out.directory.empty() && !is_absolute(out.directory)) {
    return garbled("the folder has no absolute path");
  }
  return out;
}

result<std::string> decode_resume(bytes_view from) {
  auto r = versioned(from);
  if (!r) return tl::unexpected(r.error());
  std::string tag = r->text();
  if (!r->done() || tag.empty()) return garbled("the request makes no sense");
  return tag;
}

result<snapshot_request> decode_snapshot(bytes_view from) {
  auto r = versioned(from);
  if (!r) return tl::unexpected(r.error());
  snapshot_request out;
  out.tags = get_tags(*r);
  out.path = r->text();
  out.parent = r->text();
  out.compress = r->one_of(image::codec::zstd);
  out.replace = r->flag();
  out.verify = r->flag();
  if (!r->done()) return garbled("the request makes no sense");
  if (!is_absolute(out.path) || (!out.parent.empty() && !is_absolute(out.parent))) {
    return garbled("an image has no absolute path");
  }
  return out;
}

result<give_request> decode_give(bytes_view from) {
  auto r = versioned(from);
  if (!r) return tl::unexpected(r.error());
  give_request out;
  out.tags = get_tags(*r);
  out.to = r->text();
  out.wait = std::chrono::milliseconds(r->u32());
  if (!r->done()) return garbled("the request makes no sense");
  if (!is_absolute(out.to) && !out.to.starts_with('@')) {
    return garbled("the taker's socket has no absolute path, nor an abstract name");
  }
  return out;
}

bytes encode(const migrate_request &r) {
  field_writer w = begun();
  put(w, r.tags);
  for (const std::string *s : {&r.to, &r.certificate, &r.key, &r.authorities, &r.name}) w.text(*s);
  put(w, r.fingerprints);
  w.text(r.records);
  w.bytes(r.task.bytes);
  w.u32(static_cast<std::uint32_t>(r.pause.count()));
  w.u32(r.most_rounds);
  w.u32(r.channels);
  w.u32(static_cast<std::uint32_t>(r.otherwise));
  w.u64(r.bytes_per_second);
  w.u32(static_cast<std::uint32_t>(r.wait.count()));
  w.u32(static_cast<std::uint32_t>(r.settle.count()));
  return w.take();
}

result<migrate_request> decode_migrate(bytes_view from) {
  auto r = versioned(from);
  if (!r) return tl::unexpected(r.error());
  migrate_request out;
  out.tags = get_tags(*r);
  for (std::string *s : {&out.to, &out.certificate, &out.key, &out.authorities, &out.name}) {
    *s = r->text();
  }
  out.fingerprints = get_texts(*r);
  out.records = r->text();
  r->bytes(out.task.bytes);
  out.pause = std::chrono::milliseconds(r->u32());
  out.most_rounds = r->u32();
  out.channels = r->u32();
  out.otherwise = r->one_of(migration::when_it_does_not_converge::give_up);
  out.bytes_per_second = r->u64();
  out.wait = std::chrono::milliseconds(r->u32());
  out.settle = std::chrono::milliseconds(r->u32());
  if (!r->done() || out.to.empty()) return garbled("the request makes no sense");
  for (const std::string *s : {&out.certificate, &out.key, &out.authorities, &out.records}) {
    const bool needed = s == &out.certificate || s == &out.key;
    if ((needed || !s->empty()) && !is_absolute(*s)) {
      return garbled("a certificate, a key or the folder of records has no absolute path");
    }
  }
  return out;
}

bytes encode(const snapshot_progress &p) {
  field_writer w;
  w.u32(p.verifying ? 1 : 0);
  w.u64(p.bytes);
  w.u64(p.of_bytes);
  w.u64(p.stored);
  return w.take();
}

result<snapshot_progress> decode_progress(bytes_view from) {
  field_reader r(from);
  snapshot_progress p;
  p.verifying = r.flag();
  p.bytes = r.u64();
  p.of_bytes = r.u64();
  p.stored = r.u64();
  if (!r.done()) return garbled("the progress makes no sense");
  return p;
}

}  // namespace stillmap::control
