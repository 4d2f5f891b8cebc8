// Memory small enough to be handed off a thousand times: a page, mapped for writing and, at another
// address, for reading; and one of twice its size. And the messages about it, field by field.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/common/layout_wire.h"
#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/vmm/page_pool.h"
#include "tests/checkpoint/handoff/frames.h"
#include "tests/support/buffer_test.h"
#include "tests/support/sample_task.h"

namespace stillmap::handoff::testing::small {

using checkpoint::memory_layout;
using checkpoint::restored_memory;
using stillmap::testing::sample::cache_at;
using stillmap::testing::sample::other_at;
using stillmap::testing::sample::weights_at;

inline const std::vector<std::string> tags{"weights", "cache"};

inline memory_layout layout(std::size_t page, std::uint64_t weights = weights_at,
                            std::uint64_t cache = cache_at) {
  memory_layout l;
  const memory_location here = on_device(memory_layout::own_device);
  physical_properties p;
  p.location = here;
  p.exportable = handle_type::posix_fd;
  l.blocks = {{{device_address(weights), 8 * page}, "weights", 0},
              {{device_address(cache), 2 * page}, "cache", 0}};
  l.pages = {{page, p}, {2 * page, p}};
  l.access = {{{here, access_mode::read_write}}, {{here, access_mode::read}}};
  l.places = {{device_address(weights), 0, 0},
              {device_address(weights + 2 * page), 1, 0},
              {device_address(cache), 0, 1}};
  return l;
}

template <class T>
T must(result<T> r) {
  if (!r) throw std::runtime_error(r.error().message());
  return std::move(*r);
}

// Mapped here, with contents. `pages`: the two, to export them.
inline restored_memory map(const device &d, memory_layout l,
                           std::vector<page_ptr> *pages = nullptr) {
  std::vector<page_ptr> made;
  for (const memory_layout::page &p : l.pages) {
    page_pool_options options;
    options.page_bytes = p.bytes;
    options.exportable = handle_type::posix_fd;
    options.keep_free = 0;
    const auto pool = must(page_pool::create(d, options));
    if (const status s = pool->acquire(1, made); !s) throw std::runtime_error(s.error().message());
  }
  const std::vector<memory_layout::place> places = l.places;
  restored_memory out = must(restored_memory::reserve(d, std::move(l)));
  if (const status s = out.map(made); !s) throw std::runtime_error(s.error().message());
  const std::size_t page = d.capabilities().page_bytes;
  using stillmap::testing::pattern;
  using stillmap::testing::put;
  put(d, places[0].at, pattern(64, 1));
  put(d, places[1].at, pattern(64, 2));
  put(d, places[1].at + (2 * page - 64), pattern(64, 3));
  if (pages != nullptr) *pages = std::move(made);
  return out;
}

// What is wrong with the memory at the addresses of layout(); empty: it is whole, and can be written.
inline std::string wrong(const device &d) {
  using stillmap::testing::get;
  using stillmap::testing::pattern;
  const std::size_t page = d.capabilities().page_bytes;
  const device_address weights(weights_at), cache(cache_at);
  if (get(d, weights, 64) != pattern(64, 1)) return "the first page differs";
  if (get(d, cache, 64) != pattern(64, 1)) return "its second place differs";
  if (get(d, weights + 2 * page, 64) != pattern(64, 2)) return "the large page differs";
  if (get(d, weights + (4 * page - 64), 64) != pattern(64, 3)) return "the large page is cut off";
  stillmap::testing::put(d, weights + 64, pattern(8, 4));
  return {};
}

inline frame hello_frame(const device &d, role as) {
  frame out(static_cast<std::uint16_t>(kind::hello), "hello");
  out.number("role", static_cast<std::uint64_t>(as), 4);
  const auto uuid = d.uuid();
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < 8; ++i) n |= std::uint64_t{uuid[8 * half + i]} << (8 * i);
    out.number("uuid", n, 8);
  }
  return out.number("page bytes", d.capabilities().page_bytes, 8);
}

inline frame layout_frame(const memory_layout &l, int word) {
  frame out(static_cast<std::uint16_t>(kind::layout), "layout");
  const auto u32 = [&](const std::string &name, auto value) {
    out.number(name, static_cast<std::uint32_t>(value), 4);
  };
  u32("blocks", l.blocks.size());
  u32("pages", l.pages.size());
  u32("access lists", l.access.size());
  u32("places", l.places.size());
  for (const memory_layout::block &b : l.blocks) {
    out.number("block address", b.range.begin.value(), 8);
    out.number("block bytes", b.range.bytes, 8);
    out.text("block tag", b.tag);
  }
  for (const memory_layout::page &p : l.pages) {
    out.number("page bytes", p.bytes, 8);
    u32("page location kind", p.properties.location.kind);
    u32("page location", p.properties.location.id);
    u32("page exportable", p.properties.exportable);
    u32("page rdma", p.properties.rdma);
  }
  for (const std::vector<access_grant> &list : l.access) {
    u32("grants", list.size());
    for (const access_grant &g : list) {
      u32("grant location kind", g.location.kind);
      u32("grant location", g.location.id);
      u32("grant mode", g.mode);
    }
  }
  for (const memory_layout::place &p : l.places) {
    out.number("place address", p.at.value(), 8);
    u32("place page", p.page);
    u32("place access", p.access);
  }
  u32("references", l.published.size());
  for (const checkpoint::published_reference &p : l.published) {
    out.number("reference address", p.range.begin.value(), 8);
    out.number("reference bytes", p.range.bytes, 8);
    out.text("reference tag", p.tag);
    out.text("reference name", p.name);
    for (std::size_t i = 0; i < p.id.bytes.size() / 8; ++i) out.number("reference id", 0, 8);
    u32("reference block", p.block);
  }
  return out.with({word});
}

inline frame empty_frame(kind k, const char *name, std::vector<int> fds = {}) {
  return frame(static_cast<std::uint16_t>(k), name).with(std::move(fds));
}

}  // namespace stillmap::handoff::testing::small
