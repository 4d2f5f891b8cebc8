#include "stillmap/checkpoint/common/restored_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "stillmap/checkpoint/common/internal/selection.h"
#include "stillmap/checkpoint/common/internal/wait_idle.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {

result<restored_memory> restored_memory::reserve(const device &d, memory_layout layout,
                                             placement where) {
  restored_memory out(d, std::move(layout));
  auto place = out.layout_.places.begin();
  for (memory_layout::block &b : out.layout_.blocks) {
    reservation_options options;
    options.exactly_there = where == placement::same;
    if (options.exactly_there) options.hint = b.range.begin;
    options.tag = b.tag;
    auto made = reservation::create(d, b.range.bytes, options);
    if (!made) return tl::unexpected(made.error());
    const virtual_range was = std::exchange(b.range, made->range());
    for (; place != out.layout_.places.end() && was.contains(place->at); ++place) {
      place->at = b.range.begin + (place->at - was.begin);
    }
    out.blocks_.push_back(std::move(*made));
  }
  return out;
}

status restored_memory::map(const std::vector<page_ptr> &pages) {
  if (pages.size() != layout_.pages.size() || mapped_) {
    return make_error(errc::invalid_argument, "restored_memory::map",
                  "these are not the pages of the layout", pages.size(), layout_.pages.size());
  }
  std::vector<std::vector<access_grant>> access = layout_.access;
  for (auto &list : access) {
    for (access_grant &g : list) {
      if (g.who.kind == location_kind::device) g.who.id = device_.ordinal();
    }
  }
  // Of the lists, one plan remembers two; more of them cost calls and no more.
  remap_plan plan(access.empty() ? std::vector<access_grant>{} : access.front());
  for (const memory_layout::place &p : layout_.places) {
    plan.map(p.at, pages[p.page], access[p.access]);
  }
  const status s = plan.empty() ? status{} : device_.space().apply(std::move(plan));
  if (!s) return s;
  mapped_ = true;
  for (const page_ptr &p : pages) homes_.push_back(p.pool());
  std::sort(homes_.begin(), homes_.end());
  homes_.erase(std::unique(homes_.begin(), homes_.end()), homes_.end());
  return {};
}

status restored_memory::release(const fence &idle) {
  status outcome;
  if (mapped_) {
    std::size_t i = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const virtual_range block = blocks_[b].range();
      std::vector<virtual_range> runs;
      for (; i < layout_.places.size() && block.contains(layout_.places[i].at); ++i) {
        const memory_layout::place &p = layout_.places[i];
        extend(runs, {p.at, layout_.pages[p.page].bytes}, !runs.empty());
      }
      for (const virtual_range r : runs) {
        const status s = device_.space().retire(blocks_[b].block(), r, idle);
        if (!s && outcome) outcome = s;
      }
    }
  }
  mapped_ = false;
  blocks_.clear();
  homes_.clear();
  return outcome;
}

restored_memory &restored_memory::operator=(restored_memory &&o) noexcept {
  std::swap(device_, o.device_);
  std::swap(layout_, o.layout_);
  std::swap(homes_, o.homes_);
  std::swap(blocks_, o.blocks_);
  std::swap(mapped_, o.mapped_);
  return *this;
}

restored_memory::~restored_memory() {
  if (!mapped_ || blocks_.empty()) return;  // or moved from
  status s = wait_until_idle(device_);
  if (!s) report_background_error(s.error());
  s = release(fence());
  if (!s) report_background_error(s.error());
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
           (path.empty() ? "memory without a name" : path);
  }
  return {};
}

}  // namespace stillmap::checkpoint
