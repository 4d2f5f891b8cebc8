#include "stillmap/checkpoint/suspend/internal/resumption.h"

#include <algorithm>
#include <map>

#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {
namespace {

// Whether the device may write there.
bool writes(const mapping_record &m, int device) {
  return std::any_of(m.access.begin(), m.access.end(), [&](const access_grant &g) {
    return g.mode == access_mode::read_write && g.who == on_device(device);
  });
}

}  // namespace

status resumption::map() {
  pages_.resize(what_.pages.size());
  find_places();
  if (wanted_.empty()) return {};
  if (status s = get_pages(); !s) return s;
  if (status s = get_scratch(); !s) return s;
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  for (const selection::place &p : wanted_) plan.resume(p.at, pages_[p.page].page, id_);
  for (const fresh_page &p : pages_) {
    if (p.wanted && !p.writable) plan.map(p.at, p.page);
  }
  if (status s = device_.space().apply(std::move(plan)); !s) return s;
  plan_contents();
  for (fresh_page &p : pages_) p.page = page_ptr();  // the ledger has them now
  return {};
}

// Owners may have given up some, and put other things in their place.
void resumption::find_places() {
  auto next = what_.places.begin();
  for (const virtual_range range : what_.ranges) {
    bool inside = false;  // the place before is of this run too
    for (const mapping_record &m : device_.space().mappings(range)) {
      if (m.suspended_by != id_) continue;
      next =
          std::lower_bound(next, what_.places.end(), m.range.begin,
                           [](const selection::place &p, device_address at) { return p.at < at; });
      wanted_.push_back(*next);
      fresh_page &page = pages_[next->page];
      const bool writable = writes(m, device_.ordinal());
      if (!page.wanted || (writable && !page.writable)) page.at = m.range.begin;
      page.wanted = true;
      page.writable = page.writable || writable;
      extend(ranges_, m.range, inside);
      inside = true;
    }
  }
}

status resumption::get_pages() {
  std::map<std::shared_ptr<page_pool>, std::vector<std::size_t>> by_home;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].wanted) continue;
    by_home[what_.pages[i].home].push_back(i);
    bytes_ += what_.pages[i].bytes;
    read_only_ += pages_[i].writable ? 0 : what_.pages[i].bytes;
  }
  for (const auto &[home, which] : by_home) {
    std::vector<page_ptr> got;
    got.reserve(which.size());
    if (status s = home->acquire(which.size(), got); !s) return s;
    for (std::size_t i = 0; i < which.size(); ++i) pages_[which[i]].page = std::move(got[i]);
  }
  return {};
}

status resumption::get_scratch() {
  if (read_only_ == 0) return {};
  auto made = device_.space().reserve(read_only_, 0, {}, "");
  if (!made) return tl::unexpected(made.error());
  scratch_ = std::move(*made);
  device_address at = scratch_->range().begin;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].wanted || pages_[i].writable) continue;
    pages_[i].at = at;
    at = at + what_.pages[i].bytes;
  }
  return {};
}

void resumption::plan_contents() {
  const auto one_block = [&](device_address at, device_address before) {
    return device_.space().block_at(at) == device_.space().block_at(before);
  };
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].wanted) continue;
    const piece next{{pages_[i].at, what_.pages[i].bytes}, what_.pages[i].offset};
    extend(contents_, next,
           !contents_.empty() && one_block(next.range.begin, contents_.back().range.begin));
  }
}

// Retires, so that what the driver refuses now is tried again by whoever needs the room.
void resumption::finish() noexcept {
  if (!scratch_) return;
  const virtual_range range = scratch_->range();
  device_.space().let_go(std::move(scratch_), range, fence());
  device_.space().collect();
}

void resumption::undo() noexcept {
  remap_plan plan({});
  for (const virtual_range r : ranges_) plan.suspend(r, id_);
  if (!plan.empty()) {
    const status s = device_.space().apply(std::move(plan));
    if (!s) report_background_error(s.error());
  }
  finish();
}

}  // namespace stillmap::checkpoint
