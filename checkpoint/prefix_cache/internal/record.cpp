#include "stillmap/checkpoint/prefix_cache/internal/record.h"

#include <string>

#include "stillmap/checkpoint/base/wire_format.h"

namespace stillmap::prefix_cache {
namespace {

constexpr std::uint32_t record_version = 1;

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, arena_shape> &s) {
  w(s.places, s.place_tokens, s.token_bytes, s.page_bytes, s.layers, s.tensors, s.layers_per_range);
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, stored_blocks> &r) {
  fields(w, r.shape);
  const std::size_t n = w.count(r.entries, 8);
  w.elements(r.entries, n, [&](auto &e) { w(e.block, e.key); });
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, stored_sequences> &r) {
  fields(w, r.shape);
  const std::size_t n = w.count(r.entries, 24);
  w.elements(r.entries, n, [&](auto &e) {
    w(e.place.slot, e.place.tokens, e.place.shared, e.place.with, e.key);
  });
}

template <class Record>
std::vector<std::byte> encode_any(const Record &r) {
  checkpoint::wire_writer w;
  w(record_version);
  fields(w, r);
  return w.take();
}

}  // namespace

arena_shape arena_shape::of(const kv::layout &l, std::size_t places, std::size_t place_tokens) {
  return {places,           place_tokens,      l.shape().token_bytes, l.page_bytes(),
          l.shape().layers, l.shape().tensors, l.layers_per_range()};
}

std::string arena_shape::text(const char *places_name) const {
  return std::to_string(places) + " " + places_name + " of " + std::to_string(place_tokens) +
         " tokens, " + std::to_string(layers) + " layers of " + std::to_string(tensors) +
         " tensors of " + std::to_string(token_bytes) + " bytes a token, " +
         std::to_string(layers_per_range) + " layers in a range, pages of " +
         std::to_string(page_bytes) + " bytes";
}

std::vector<std::byte> encode(const stored_blocks &r) {
  return encode_any(r);
}

std::vector<std::byte> encode(const stored_sequences &r) {
  return encode_any(r);
}

template <class Record>
result<Record> decode(std::span<const std::byte> from) {
  checkpoint::wire_reader w(from);
  const auto version = w.read<std::uint32_t>();
  if (w.good() && version != record_version) {
    return make_error(errc::not_supported, "the prefix cache has another version", version,
                      record_version);
  }
  Record r;
  fields(w, r);
  if (!w.done()) return make_error(errc::corrupt, "the bytes are no record of a prefix cache");
  return r;
}

template result<stored_blocks> decode(std::span<const std::byte> from);
template result<stored_sequences> decode(std::span<const std::byte> from);

}  // namespace stillmap::prefix_cache
