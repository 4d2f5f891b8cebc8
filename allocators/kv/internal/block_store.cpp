#include "stillmap/allocators/kv/internal/block_store.h"

#include <utility>

#include "stillmap/allocators/kv/internal/create_pool.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv {

result<block_store> create_block_store(const device &d, block_store_options options) {
  constexpr std::size_t most = UINT32_MAX - 1;
  if (options.blocks == 0 || options.blocks > most) {
    return make_error(errc::invalid_argument, "the number of blocks is 0 or too large",
                      options.blocks, most, error_unit::items);
  }
  const bool own_pool = !options.pool;
  STILLMAP_RETURN_IF_ERROR(choose_pool(d, options.pool));
  STILLMAP_ASSIGN_OR_RETURN(const layout l,
                            layout::create(options.shape, options.tokens_per_block,
                                           options.pool->page_bytes(), options.layers_per_range));
  if (options.blocks > (SIZE_MAX >> 1) / l.block_stride()) {
    return make_error(errc::invalid_argument, "the blocks exceed any address space", options.blocks,
                      (SIZE_MAX >> 1) / l.block_stride(), error_unit::items);
  }
  STILLMAP_ASSIGN_OR_RETURN(auto groups,
                            group_store::create(d, l,
                                                {.groups = l.pages_of(0, options.blocks).count,
                                                 .sharing = false,
                                                 .pool = std::move(options.pool),
                                                 .trims_pool = own_pool,
                                                 .tag = std::move(options.tag)}));
  return block_store{l, std::move(groups)};
}

}  // namespace stillmap::kv
