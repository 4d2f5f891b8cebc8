#include "stillmap/allocators/kv/layout.h"

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::kv {
namespace {

// The rule's limit. Half a page group is unused at the end of a sequence: 32 tokens of a thousand or more.
constexpr std::size_t most_tokens_per_group = 64;

// No arena is larger than what 47 bits address.
constexpr std::size_t most_bytes = std::size_t{1} << 47;

std::uint32_t choose_layers(const shape &s, std::size_t page_bytes) {
  for (std::uint32_t layers = 1; layers < s.layers; ++layers) {
    if (s.layers % layers != 0) continue;
    if (page_bytes <= most_tokens_per_group * s.token_bytes * s.tensors * layers) return layers;
  }
  return s.layers;
}

}  // namespace

result<layout> layout::create(const kv::shape &s, std::size_t tokens_per_block,
                              std::size_t page_bytes, std::uint32_t layers_per_range) {
  const operation_scope scope("kv::layout::create");
  if (s.layers == 0) return make_error(errc::invalid_argument, "the shape has no layers");
  if (s.tensors == 0) return make_error(errc::invalid_argument, "a layer has no tensors");
  if (s.token_bytes == 0) return make_error(errc::invalid_argument, "a token has no bytes");
  if (tokens_per_block == 0) return make_error(errc::invalid_argument, "a block has no tokens");
  if (page_bytes == 0 || (page_bytes & (page_bytes - 1)) != 0) {
    return make_error(errc::invalid_argument, "the page size is no power of two", page_bytes, 0,
                      error_unit::bytes);
  }
  if (tokens_per_block > most_bytes / s.token_bytes ||
      std::size_t{s.layers} * s.tensors > most_bytes / (tokens_per_block * s.token_bytes)) {
    return make_error(errc::invalid_argument, "a block exceeds any address space", 0, most_bytes,
                      error_unit::bytes);
  }
  if (layers_per_range == 0) layers_per_range = choose_layers(s, page_bytes);
  if (s.layers % layers_per_range != 0) {
    return make_error(errc::invalid_argument,
                      "the layers of a range do not divide the model's layers", layers_per_range,
                      s.layers, error_unit::items);
  }
  return layout(s, tokens_per_block, page_bytes, layers_per_range);
}

page_span layout::pages_of(std::size_t first_block, std::size_t blocks) const {
  const std::size_t begin = first_block * block_stride() / page_bytes_;
  if (blocks == 0) return {begin, 0};
  const std::size_t end = divide_up((first_block + blocks) * block_stride(), page_bytes_);
  return {begin, end - begin};
}

page_span layout::pages_within(std::size_t first_block, std::size_t blocks) const {
  const std::size_t begin = divide_up(first_block * block_stride(), page_bytes_);
  const std::size_t end = (first_block + blocks) * block_stride() / page_bytes_;
  return {begin, end > begin ? end - begin : 0};
}

}  // namespace stillmap::kv
