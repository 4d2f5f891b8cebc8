#include "stillmap/checkpoint/suspend/internal/resumption.h"

#include <algorithm>
#include <map>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {
namespace {

// Whether the device may write to the mapping.
bool writes(const mapping_record &m, int device) {
  return std::any_of(m.access.begin(), m.access.end(), [&](const access_grant &g) {
    return g.mode == access_mode::read_write && g.location == on_device(device);
  });
}

}  // namespace

status resumption::map() {
  const status done = with_host_memory([&] { return prepare(); });
  // After a success the ledger owns the pages.
  for (fresh_page &p : pages_) p.page = page_ptr();
  return done;
}

// The plan is the last step: whatever allocates comes before.
status resumption::prepare() {
  pages_.resize(suspended_.pages.size());
  find_places();
  if (wanted_.empty()) return {};
  STILLMAP_RETURN_IF_ERROR(create_pages());
  STILLMAP_RETURN_IF_ERROR(reserve_scratch());
  plan_contents();
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  for (const selection::place &p : wanted_) plan.resume(p.at, pages_[p.page].page, id_);
  for (const fresh_page &p : pages_) {
    if (p.wanted && !p.writable) plan.map(p.at, p.page);
  }
  return device_.space().apply(std::move(plan));
}

// Owners may have released some of the places, and mapped other pages there.
void resumption::find_places() {
  auto next = suspended_.places.begin();
  for (const virtual_range range : suspended_.ranges) {
    for (const mapping_record &m : device_.space().mappings(range)) {
      if (m.suspended_by != id_) continue;
      next =
          std::lower_bound(next, suspended_.places.end(), m.range.begin,
                           [](const selection::place &p, device_address at) { return p.at < at; });
      wanted_.push_back(*next);
      fresh_page &page = pages_[next->page];
      const bool writable = writes(m, device_.ordinal());
      if (!page.wanted || (writable && !page.writable)) page.at = m.range.begin;
      page.wanted = true;
      page.writable = page.writable || writable;
    }
  }
}

status resumption::create_pages() {
  std::map<std::shared_ptr<page_pool>, std::vector<std::size_t>> by_pool;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].wanted) continue;
    by_pool[suspended_.pages[i].pool].push_back(i);
    bytes_ += suspended_.pages[i].bytes;
    read_only_bytes_ += pages_[i].writable ? 0 : suspended_.pages[i].bytes;
  }
  for (const auto &[pool, which] : by_pool) {
    std::vector<page_ptr> got;
    got.reserve(which.size());
    STILLMAP_RETURN_IF_ERROR(pool->acquire(which.size(), got));
    for (std::size_t i = 0; i < which.size(); ++i) pages_[which[i]].page = std::move(got[i]);
  }
  return {};
}

status resumption::reserve_scratch() {
  if (read_only_bytes_ == 0) return {};
  STILLMAP_ASSIGN_OR_RETURN(scratch_, device_.space().reserve(read_only_bytes_, 0, {}, ""));
  device_address at = scratch_->range().begin;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].wanted || pages_[i].writable) continue;
    pages_[i].at = at;
    at = at + suspended_.pages[i].bytes;
  }
  return {};
}

void resumption::plan_contents() {
  const auto same_block = [&](device_address at, device_address before) {
    return device_.space().block_at(at) == device_.space().block_at(before);
  };
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].wanted) continue;
    const piece next{{pages_[i].at, suspended_.pages[i].bytes}, suspended_.pages[i].offset};
    extend(contents_, next,
           !contents_.empty() && same_block(next.range.begin, contents_.back().range.begin));
  }
}

// By retiring: where the driver refuses to unmap now, the ledger tries again later.
void resumption::finish() noexcept {
  if (!scratch_) return;
  const virtual_range range = scratch_->range();
  report_if_failed(with_host_memory([&]() -> status {
    device_.space().retire_again(std::move(scratch_), range, fence());
    device_.space().collect();
    return {};
  }));
}

void resumption::undo() noexcept {
  report_if_failed(with_host_memory([&]() -> status {
    remap_plan plan({});
    for (const selection::place &p : wanted_) {
      plan.suspend({p.at, suspended_.pages[p.page].bytes}, id_);
    }
    return plan.empty() ? status() : device_.space().apply(std::move(plan));
  }));
  finish();
}

}  // namespace stillmap::checkpoint
