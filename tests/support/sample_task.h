// The memory of a task for tests of snapshot and handoff: a hole, a page at two addresses, a read-only
// page, and a pointer, at addresses that are free in another process, too.
#pragma once

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"

namespace stillmap::testing::sample {

using testing::far_away;
inline constexpr std::uint64_t apart = 0x10'0000'0000;
inline constexpr std::uint64_t weights_at = far_away, cache_at = far_away + apart,
                               other_at = far_away + 2 * apart;

inline const std::vector<std::string> both{"weights", "cache"};

// What a task has: five places with a hole behind the second, the last the first page again; and
// two pages, one of them to be read only. The first word of the weights is a pointer to the cache.
class task {
 public:
  explicit task(const device &d, handle_type exportable = handle_type::posix_fd) : device_(d) {
    const std::size_t page = d.capabilities().page_bytes;
    page_pool_options options;
    options.exportable = exportable;
    options.keep_free = 0;
    auto pool = page_pool::create(d, options);
    if (!pool) throw std::runtime_error(pool.error().message());
    std::vector<page_ptr> pages;
    check((*pool)->acquire(7, pages));
    checkpoint::memory_layout l;
    l.blocks = {{{device_address(weights_at), 16 * page}, "weights"},
                {{device_address(cache_at), 4 * page}, "cache"},
                {{device_address(other_at), 4 * page}, "other"}};
    l.pages.assign(7, {page, pages[0]->properties()});
    l.access = {{{on_device(d.ordinal()), access_mode::read_write}}};
    std::uint32_t of[] = {0, 1, 2, 3, 0, 4, 5, 6};
    const std::uint64_t at[] = {weights_at,
                                weights_at + page,
                                weights_at + 3 * page,
                                weights_at + 4 * page,
                                weights_at + 5 * page,
                                cache_at,
                                cache_at + page,
                                other_at};
    for (std::size_t i = 0; i < std::size(of); ++i) {
      l.places.push_back({device_address(at[i]), of[i], 0});
    }
    auto made = checkpoint::restored_memory::reserve(d, std::move(l));
    if (!made) throw std::runtime_error(made.error().message());
    memory_.emplace(std::move(*made));
    check(memory_->map(pages));
    fill();
    remap_plan plan({});
    plan.grant({device_address(cache_at + page), page},
               {{on_device(d.ordinal()), access_mode::read}});
    check(d.space().apply(std::move(plan)));
  }

  static std::string wrong(const device &d) {
    const std::size_t page = d.capabilities().page_bytes;
    const auto is = [&](std::uint64_t at, unsigned seed, std::size_t skip = 0) {
      auto want = pattern(page, seed);
      want.erase(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(skip));
      return get(d, device_address(at + skip), page - skip) == want;
    };
    if (!is(weights_at, 1, 8) || !is(weights_at + page, 2) || !is(weights_at + 3 * page, 3) ||
        !is(weights_at + 4 * page, 4) || !is(weights_at + 5 * page, 1, 8)) {
      return "weights differ";
    }
    std::uint64_t pointer = 0;
    const auto word = get(d, device_address(weights_at), sizeof pointer);
    std::memcpy(&pointer, word.data(), sizeof pointer);
    if (!is(pointer, 6) || !is(cache_at, 5)) return "what is pointed to differs";
    return {};
  }

 private:
  static void check(const status &s) {
    if (!s) throw std::runtime_error(s.error().message());
  }
  void fill() const {
    const std::size_t page = device_.capabilities().page_bytes;
    for (const auto &[at, seed] : {std::pair{weights_at, 1U},
                                   {weights_at + page, 2U},
                                   {weights_at + 3 * page, 3U},
                                   {weights_at + 4 * page, 4U},
                                   {cache_at, 5U},
                                   {cache_at + page, 6U},
                                   {other_at, 7U}}) {
      put(device_, device_address(at), pattern(page, seed));
    }
    const std::uint64_t pointer = cache_at + page;
    std::vector<unsigned char> word(sizeof pointer);
    std::memcpy(word.data(), &pointer, sizeof pointer);
    put(device_, device_address(weights_at), word);
  }

  device device_;
  std::optional<checkpoint::restored_memory> memory_;
};

}  // namespace stillmap::testing::sample
