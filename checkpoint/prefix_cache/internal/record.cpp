#include "stillmap/checkpoint/prefix_cache/internal/record.h"

#include <string>

#include "stillmap/checkpoint/base/wire_format.h"

namespace stillmap::prefix_cache {
namespace {

constexpr std::uint32_t record_version = 1;

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, record> &r) {
  w(r.shape.blocks, r.shape.tokens_per_block, r.shape.token_bytes, r.shape.page_bytes,
    r.shape.layers, r.shape.tensors, r.shape.layers_per_range);
  const std::size_t n = w.count(r.entries, 8);
  w.elements(r.entries, n, [&](auto &e) { w(e.block, e.key); });
}

}  // namespace

arena_shape arena_shape::of(const kv::block_arena &arena) {
  const kv::layout &l = arena.layout();
  return {arena.blocks(),   l.tokens_per_block(), l.shape().token_bytes, l.page_bytes(),
          l.shape().layers, l.shape().tensors,    l.layers_per_range()};
}

std::string arena_shape::text() const {
  return std::to_string(blocks) + " blocks of " + std::to_string(tokens_per_block) + " tokens, " +
         std::to_string(layers) + " layers of " + std::to_string(tensors) + " tensors of " +
         std::to_string(token_bytes) + " bytes a token, " + std::to_string(layers_per_range) +
         " layers in a range, pages of " + std::to_string(page_bytes) + " bytes";
}

std::vector<std::byte> encode(const record &r) {
  checkpoint::wire_writer w;
  w(record_version);
  fields(w, r);
  return w.take();
}

result<record> decode(std::span<const std::byte> from) {
  checkpoint::wire_reader w(from);
  const auto version = w.read<std::uint32_t>();
  if (w.good() && version != record_version) {
    return make_error(errc::not_supported, "the image's prefix cache has another version", version,
                      record_version);
  }
  record r;
  fields(w, r);
  if (!w.done()) return make_error(errc::corrupt, "the note is no record of a prefix cache");
  return r;
}

}  // namespace stillmap::prefix_cache
