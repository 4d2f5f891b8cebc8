#include "bench/support/task_memory.h"

#include "stillmap/vmm/base/try.h"

namespace stillmap::bench {

result<checkpoint::restored_memory> make_task_memory(const device &d, std::size_t pages,
                                                     page_pool_options options) {
  options.keep_free = 0;
  STILLMAP_ASSIGN_OR_RETURN(const auto pool, page_pool::create(d, options));
  const std::size_t page = pool->page_bytes();
  std::vector<page_ptr> got;
  STILLMAP_RETURN_IF_ERROR(pool->acquire(pages, got));
  checkpoint::memory_layout l;
  l.blocks = {{{task_begin, pages * page}, "task"}};
  l.pages.assign(pages, {page, pool->properties()});
  l.access = {{{on_device(d.ordinal()), access_mode::read_write}}};
  for (std::size_t i = 0; i < pages; ++i) {
    l.places.push_back({task_begin + i * page, static_cast<std::uint32_t>(i), 0});
  }
  STILLMAP_ASSIGN_OR_RETURN(auto made, checkpoint::restored_memory::reserve(d, std::move(l)));
  STILLMAP_RETURN_IF_ERROR(made.map(got));
  return made;
}

}  // namespace stillmap::bench
