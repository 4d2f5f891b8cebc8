#include "python/src/kv_arena.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap::python {

kv::shape kv_shape_of(const char *operation, std::uint32_t layers, std::uint32_t tensors,
                      const kv_elements &of) {
  const std::size_t token_bytes = std::size_t{of.heads} * of.dim;  // 2^64 at most
  if (token_bytes == 0 || token_bytes > (SIZE_MAX >> 8) / of.type.bytes) {
    raise(make_python_error(errc::invalid_argument, operation,
                            "heads times dim is 0, or more than there can be", token_bytes, 0,
                            error_unit::items)
              .value());
  }
  kv::shape s;
  s.layers = layers;
  s.tensors = tensors;
  s.token_bytes = token_bytes * of.type.bytes;
  return s;
}

result<std::shared_ptr<page_pool>> kv_pool(const device &d, std::shared_ptr<memory_quota> quota) {
  if (!quota || !d.capabilities().vmm) return std::shared_ptr<page_pool>();
  page_pool_options pages;
  pages.keep_free = 0;  // what the arena gives up is for the quota's others
  pages.quota = std::move(quota);
  return page_pool::create(d, pages);
}

result<std::size_t> short_bytes(const status &step) {
  if (step) return std::size_t{0};
  const error &e = step.error();
  // The host's memory is not the scheduler's to free.
  if (!e.is(errc::out_of_memory) || e.code == std::errc::not_enough_memory)
    return tl::unexpected(e);
  return std::max<std::size_t>(e.value > e.limit ? e.value - e.limit : e.value, 1);
}

result<exported_array> describe_kv(const char *class_name, const kv::layout &l,
                                   const kv_elements &of, const kv_place &place, std::size_t rows,
                                   bool blocks) {
  if (place.layer >= l.shape().layers) {
    return make_python_error(errc::invalid_argument, class_name, "there is no such layer",
                             place.layer, l.shape().layers, error_unit::items);
  }
  if (place.tensor && *place.tensor >= l.shape().tensors) {
    return make_python_error(errc::invalid_argument, class_name, "a layer has no such tensor",
                             *place.tensor, l.shape().tensors, error_unit::items);
  }
  exported_array a;
  a.type = of.type;
  const auto dim = std::int64_t{of.dim}, heads = std::int64_t{of.heads};
  const auto add = [&](std::size_t extent, std::size_t stride) {
    a.shape.push_back(static_cast<std::int64_t>(extent));
    a.strides.push_back(static_cast<std::int64_t>(stride));
  };
  if (!place.tensor) add(l.shape().tensors, l.block_bytes() / of.type.bytes);
  add(rows, l.block_stride() / of.type.bytes);
  if (blocks) add(l.tokens_per_block(), l.shape().token_bytes / of.type.bytes);
  add(of.heads, of.dim);
  add(of.dim, 1);
  a.elements = rows * l.tokens_per_block() * static_cast<std::size_t>(dim * heads) *
               (place.tensor ? 1 : l.shape().tensors);
  return a;
}

nb::dict dict_of(const kv::layout &l) {
  nb::dict d;
  d["layers"] = l.shape().layers;
  d["tensors"] = l.shape().tensors;
  d["token_bytes"] = l.shape().token_bytes;
  d["tokens_per_block"] = l.tokens_per_block();
  d["layers_per_range"] = l.layers_per_range();
  d["ranges"] = l.ranges();
  d["page_bytes"] = l.page_bytes();
  d["group_bytes"] = l.group_bytes();
  d["block_bytes"] = l.block_bytes();
  d["block_stride"] = l.block_stride();
  return d;
}

}  // namespace stillmap::python
