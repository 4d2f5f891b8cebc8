#include "tests/checkpoint/control/memory.h"

#include <stdexcept>

#include "stillmap/vmm/page_pool.h"
#include "tests/support/buffer_test.h"
#include "tests/support/unique_name.h"

namespace stillmap::control::testing {

using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;

checkpoint::restored_memory weights_and_cache(const device &d, bool exportable) {
  const std::size_t page = d.capabilities().page_bytes;
  page_pool_options options;
  if (exportable && d.capabilities().posix_fd_export) options.exportable = handle_type::posix_fd;
  options.keep_free = 0;
  auto pool = page_pool::create(d, options);
  std::vector<page_ptr> pages;
  if (!pool || !(*pool)->acquire(6, pages)) throw std::runtime_error("no pages");
  checkpoint::memory_layout l;
  l.blocks = {{{device_address(weights_at), 8 * page}, "weights"},
              {{device_address(cache_at), 2 * page}, "cache"}};
  l.pages.assign(6, {page, pages[0]->properties()});
  l.access = {{{on_device(d.ordinal()), access_mode::read_write}}};
  for (std::uint32_t i = 0; i < 6; ++i) {
    const std::uint64_t at = i < 4 ? weights_at + i * page : cache_at + (i - 4) * page;
    l.places.push_back({device_address(at), i, 0});
  }
  auto made = checkpoint::restored_memory::reserve(d, std::move(l));
  if (!made) throw std::runtime_error(made.error().message());
  if (status s = made->map(pages); !s) throw std::runtime_error(s.error().message());
  put(d, device_address(weights_at), pattern(4 * page, 1));
  put(d, device_address(cache_at), pattern(2 * page, 2));
  return std::move(*made);
}

::testing::AssertionResult is_whole(const device &d) {
  const std::size_t page = d.capabilities().page_bytes;
  const auto weights = holds(d, device_address(weights_at), 4 * page, 1);
  return weights ? holds(d, device_address(cache_at), 2 * page, 2) : weights;
}

std::string new_place() {
  return stillmap::testing::unique_name("@stillmap-control");
}

}  // namespace stillmap::control::testing
