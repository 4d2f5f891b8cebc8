#include "stillmap/checkpoint/common/restored_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {

result<restored_memory> restored_memory::reserve(const stillmap::device &d, memory_layout layout,
                                                 placement where) {
  return with_host_memory("restored_memory::reserve", [&]() -> result<restored_memory> {
    std::vector<device_address> at;
    for (const memory_layout::block &b : layout.blocks) {
      at.push_back(where == placement::same ? b.range.begin : device_address());
    }
    return reserve_at(d, std::move(layout), at);
  });
}

result<restored_memory> restored_memory::reserve_at(const stillmap::device &d, memory_layout layout,
                                                    std::span<const device_address> at) {
  return with_host_memory("restored_memory::reserve_at", [&]() -> result<restored_memory> {
    restored_memory out(d, std::move(layout));
    out.blocks_.reserve(out.layout_.blocks.size());
    auto place = out.layout_.places.begin();
    for (memory_layout::block &b : out.layout_.blocks) {
      reservation_options options;
      options.hint = at[out.blocks_.size()];
      options.exact_address = static_cast<bool>(options.hint);
      options.tag = b.tag;
      STILLMAP_ASSIGN_OR_RETURN(reservation made, reservation::create(d, b.range.bytes, options));
      const virtual_range original = std::exchange(b.range, made.range());
      for (; place != out.layout_.places.end() && original.contains(place->at); ++place) {
        place->at = b.range.begin + (place->at - original.begin);
      }
      out.blocks_.push_back(std::move(made));
    }
    return out;
  });
}

status restored_memory::map(const std::vector<page_ptr> &pages) {
  const operation_scope scope("restored_memory::map");
  if (mapped_) return make_error(errc::invalid_argument, "the memory is mapped already");
  if (pages.size() != layout_.pages.size()) {
    return make_error(errc::invalid_argument, "the layout has another number of pages",
                      pages.size(), layout_.pages.size(), error_unit::pages);
  }
  return with_host_memory([&] { return map_all(pages); });
}

status restored_memory::map_all(const std::vector<page_ptr> &pages) {
  std::vector<std::shared_ptr<page_pool>> pools;
  for (const page_ptr &p : pages) pools.push_back(p.pool());
  std::sort(pools.begin(), pools.end());
  pools.erase(std::unique(pools.begin(), pools.end()), pools.end());
  std::vector<std::vector<access_grant>> access = layout_.access;
  for (auto &list : access) {
    for (access_grant &g : list) {
      if (g.location.kind == location_kind::device) g.location.id = device_.ordinal();
    }
  }
  // The plan shares the first list among its steps.
  remap_plan plan(access.empty() ? std::vector<access_grant>{} : access.front());
  for (const memory_layout::place &p : layout_.places) {
    plan.map(p.at, pages[p.page], access[p.access]);
  }
  if (!plan.empty()) STILLMAP_RETURN_IF_ERROR(device_.space().apply(std::move(plan)));
  mapped_ = true;
  pools_ = std::move(pools);
  return {};
}

status restored_memory::release(const fence &idle) {
  const operation_scope scope("restored_memory::release");
  status outcome;
  const auto retire = [&](const reservation &from, virtual_range run) {
    const status s =
        with_host_memory([&] { return device_.space().retire(from.block(), run, idle); });
    if (!s && outcome) outcome = s;
  };
  if (mapped_) {
    std::size_t i = 0;
    for (const reservation &block : blocks_) {
      virtual_range run;  // of adjacent places
      for (; i < layout_.places.size() && block.range().contains(layout_.places[i].at); ++i) {
        const memory_layout::place &p = layout_.places[i];
        const std::size_t bytes = layout_.pages[p.page].bytes;
        if (run.bytes != 0 && run.end() != p.at) retire(block, std::exchange(run, {}));
        if (run.bytes == 0) run.begin = p.at;
        run.bytes += bytes;
      }
      if (run.bytes != 0) retire(block, run);
    }
  }
  mapped_ = false;
  blocks_.clear();
  pools_.clear();
  return outcome;
}

restored_memory &restored_memory::operator=(restored_memory &&o) noexcept {
  std::swap(device_, o.device_);
  std::swap(layout_, o.layout_);
  std::swap(pools_, o.pools_);
  std::swap(blocks_, o.blocks_);
  std::swap(mapped_, o.mapped_);
  return *this;
}

restored_memory::~restored_memory() {
  if (!mapped_ || blocks_.empty()) return;  // never mapped, released or moved from
  const operation_scope scope("restored_memory::~restored_memory");
  for (const status &s : {wait_until_idle(device_), release(fence())}) {
    if (!s) report_background_error(s.error());
  }
}

std::string find_mapping_owner(virtual_range range) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    char access[8] = {};
    int name = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %7s %*s %*s %*s %n", &begin, &end, access, &name) <
        3) {
      continue;
    }
    if (!range.overlaps({device_address(begin), static_cast<std::size_t>(end - begin)})) continue;
    const std::string path = line.substr(std::min(line.size(), static_cast<std::size_t>(name)));
    return line.substr(0, line.find(' ')) + ' ' + access + ' ' +
           (path.empty() ? "[anonymous]" : path);
  }
  return {};
}

}  // namespace stillmap::checkpoint
