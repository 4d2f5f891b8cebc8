// Performs remap plans: address_space::apply. Host memory is taken before the first driver call only.
#include <algorithm>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/internal/ledger.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

// Performs one plan: checks it against the ledger, then makes the calls, and undoes them on failure.
class remap {
 public:
  remap(address_space &space, remap_plan &plan) : space_(space), plan_(plan) {}

  status run() STILLMAP_EXCLUDES(space_.mutex_) {
    {
      const lock_guard lock(space_.mutex_);
      STILLMAP_RETURN_IF_ERROR(check_locked());
    }
    for (auto *list : {&arriving_, &replacing_}) {
      for (present &p : *list) prepare(p);
    }
    if (touched_.empty()) {
      if (!forgotten_.empty()) update_ledger(true);
      return {};
    }
    const context_guard guard(driver(), space_.device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    notify(backing_event::phase::about_to_change);
    if (status s = perform(); !s) {
      undo();
      update_ledger(false);
      notify(backing_event::phase::abandoned);
      return s;
    }
    update_ledger(true);
    for (const auto &t : touched_) t.block->generation_.fetch_add(1, std::memory_order_acq_rel);
    notify(backing_event::phase::changed);
    return {};
  }

 private:
  using access_ptr = address_space::access_ptr;
  struct present {  // one mapping, now or before the plan
    virtual_range range;
    physical_handle handle;
    ledger_page_ptr page;  // arriving or replacing: moved into `prepared`
    access_ptr own_access;
    std::uint64_t block;
    std::uint64_t suspend_by = 0;  // leaving: the place stays; arriving: the id that suspended it
    const access_ptr *of_plan = nullptr;  // its access where the plan says it: counting costs time
    std::unique_ptr<mapping_entry> prepared{};  // arriving or replacing: its entry
    bool undo_failed = false;  // leaving: it is lost; otherwise: it is still mapped

    const access_ptr &access() const { return of_plan != nullptr ? *of_plan : own_access; }
  };
  struct touched_range {
    std::shared_ptr<address_block> block;
    virtual_range range;
  };
  enum class purpose { unmap, suspend, grant };

  const stillmap::driver &driver() const { return *space_.device_.drv; }
  mapping_index &mappings() const STILLMAP_REQUIRES(space_.mutex_) {
    return space_.ledger_->mappings;
  }

  static tl::unexpected<error> no(const char *why, device_address at, std::uint64_t limit = 0) {
    return make_error(errc::invalid_argument, why, at.value(), limit, error_unit::address);
  }

  static tl::unexpected<error> is_suspended(const mapping_entry &e) {
    return make_error(errc::busy,
                      e.suspended_by == suspended_for_good ? released_reason : suspended_reason,
                      e.range.begin.value(), 0, error_unit::address);
  }

  // ---- plan against ledger; no driver ----------------------------------------------------------

  status check_locked() STILLMAP_REQUIRES(space_.mutex_) {
    for (const virtual_range r : plan_.unmaps_) {
      STILLMAP_RETURN_IF_ERROR(gather_locked(r, leaving_, purpose::unmap));
    }
    for (const auto &step : plan_.suspends_) {
      const std::size_t before = leaving_.size();
      STILLMAP_RETURN_IF_ERROR(gather_locked(step.range, leaving_, purpose::suspend));
      for (std::size_t i = before; i < leaving_.size(); ++i) leaving_[i].suspend_by = step.by;
    }
    STILLMAP_RETURN_IF_ERROR(sort_disjoint(leaving_, "a range is unmapped twice"));
    for (const auto &g : plan_.grants_) {
      std::vector<present> concerned;
      STILLMAP_RETURN_IF_ERROR(gather_locked(g.range, concerned, purpose::grant));
      for (present &p : concerned) {
        if (is_leaving(p.range)) {
          return no("a mapping is unmapped and its access changed", p.range.begin);
        }
        regranted_.push_back({std::move(p), plan_.access_[g.access]});
      }
    }
    arriving_.reserve(plan_.maps_.size() + plan_.aliases_.size());
    for (const auto &step : plan_.aliases_) {
      STILLMAP_RETURN_IF_ERROR(alias_locked(step.at, step.range));
    }
    for (const auto &step : plan_.maps_) {
      if (!step.page) return no("a step maps no page", step.at);
      const auto &access = plan_.access_[step.access];
      STILLMAP_RETURN_IF_ERROR(
          arrive_locked(step.at, step.page.share(), access, step.suspended_by));
    }
    for (auto *list : {&arriving_, &replacing_}) {
      STILLMAP_RETURN_IF_ERROR(sort_disjoint(*list, "two steps map the same address"));
    }
    const std::size_t live = mappings().size() - space_.suspended_ + arriving_.size();
    const std::size_t ceiling = space_.stats_.mapping_ceiling;
    if (!arriving_.empty() && ceiling != 0 && live > ceiling) {
      return make_error(errc::address_space_exhausted, "the ceiling of live mappings is reached",
                        live, ceiling, error_unit::items);
    }
    return {};
  }

  // `page` is to be mapped at `at`.
  status arrive_locked(device_address at, const ledger_page_ptr &page, const access_ptr &access,
                       std::uint64_t suspended_by) STILLMAP_REQUIRES(space_.mutex_) {
    const virtual_range target{at, page->bytes()};
    if (target_block_ == nullptr || !target_block_->range().contains(target)) {
      target_block_ = space_.block_at_locked(at);
      if (target_block_ == nullptr || !target_block_->range().contains(target)) {
        return no("the target is not inside one reservation", at);
      }
    }
    const auto &block = target_block_;
    if (at.value() % space_.device_.caps.page_bytes != 0) {
      return no("the target is not page-aligned", at, space_.device_.caps.page_bytes);
    }
    if (suspended_by != 0) {
      const mapping_entry *const e = mappings().find(at);
      if (e == nullptr || e->range != target || e->suspended_by != suspended_by) {
        return no("no page of that size was suspended there", at);
      }
      arriving_.push_back({target, page->handle(), page, e->access, block->id(), suspended_by});
      touch(block, target);
      return {};
    }
    const bool replacing = is_leaving(target);
    if (!replacing && occupied_locked(target)) return no("the target is mapped already", at);
    if (!replacing && block->of_buffer_ && !plan_.of_buffer_) {
      return no("the target belongs to a growable_buffer, which must map it itself", at);
    }
    (replacing ? replacing_ : arriving_)
        .push_back({target, page->handle(), page, nullptr, block->id(), 0, &access,
                    space_.ledger_->spare.take()});
    mappings().expect(at);
    touch(block, target);
    return {};
  }

  // The pages of `range` are to be mapped from `at` on, too.
  status alias_locked(device_address at, virtual_range range) STILLMAP_REQUIRES(space_.mutex_) {
    device_address next = range.begin;
    for (const mapping_entry *e = mappings().from(next);
         e != nullptr && e->range.begin == next && next < range.end(); e = mappings().after(*e)) {
      if (e->suspended_by != 0) return is_suspended(*e);
      if (e->retiring) return no("a mapping in the range is retiring", next);
      STILLMAP_RETURN_IF_ERROR(
          arrive_locked(at + (next - range.begin), e->backing, plan_.access_.front(), 0));
      next = e->range.end();
    }
    if (next != range.end()) return no("the range is not made of whole live mappings", next);
    return {};
  }

  // Sorts a list by address. An overlap is an error.
  static status sort_disjoint(std::vector<present> &list, const char *overlap) {
    const auto before = [](const present &a, const present &b) {
      return a.range.begin < b.range.begin;
    };
    // A plan lists most ranges in order, and an element is costly to move.
    if (!std::is_sorted(list.begin(), list.end(), before)) {
      std::sort(list.begin(), list.end(), before);
    }
    for (std::size_t i = 1; i < list.size(); ++i) {
      if (list[i - 1].range.overlaps(list[i].range)) return no(overlap, list[i].range.begin);
    }
    return {};
  }

  status gather_locked(virtual_range r, std::vector<present> &into, purpose why)
      STILLMAP_REQUIRES(space_.mutex_) {
    std::size_t found = 0;
    for (const mapping_entry *e = mappings().from(r.begin);
         e != nullptr && e->range.begin < r.end(); e = mappings().after(*e)) {
      const virtual_range range = e->range;
      if (!r.contains(range)) return no("the range cuts a mapping", range.begin);
      if (e->suspended_by != 0) {
        if (why != purpose::unmap) return is_suspended(*e);
        forgotten_.push_back(range);
        found += range.bytes;
        continue;
      }
      if (e->retiring) return no("a mapping in the range is retiring", range.begin);
      const auto block = space_.block_at_locked(range.begin);
      if (!block) return no("the range is in no reservation", range.begin);
      into.push_back({range, e->backing->handle(), e->backing, e->access, block->id()});
      touch(block, range);
      found += range.bytes;
    }
    if (found == 0) return no("nothing is mapped in the range", r.begin);
    const mapping_entry *const before = mappings().before(r.begin);
    if (before != nullptr && before->range.end() > r.begin) {
      return no("the range cuts a mapping", before->range.begin);
    }
    return {};
  }

  // The plan unmaps that mapping. A place that it suspends stays.
  bool is_leaving(virtual_range target) const {
    const auto it =
        std::lower_bound(leaving_.begin(), leaving_.end(), target.begin,
                         [](const present &p, device_address at) { return p.range.begin < at; });
    return it != leaving_.end() && it->range == target && it->suspend_by == 0;
  }

  bool occupied_locked(virtual_range target) STILLMAP_REQUIRES(space_.mutex_) {
    if (vacant_.contains(target)) return false;
    const mapping_entry *const before = mappings().before(target.begin);
    if (before != nullptr && before->range.end() > target.begin) return true;
    const mapping_entry *const next = mappings().from(target.begin);
    const device_address until = next == nullptr ? device_address(UINT64_MAX) : next->range.begin;
    if (until < target.end()) return true;
    vacant_ = {target.begin, until - target.begin};
    return false;
  }

  // Makes an entry of the ledger without a place in it, so that entering it takes no memory.
  static void prepare(present &p) {
    if (!p.prepared) p.prepared = std::make_unique<mapping_entry>();
    p.prepared->range = p.range;
    p.prepared->backing = std::move(p.page);
    p.prepared->access = p.access();
  }

  void touch(const std::shared_ptr<address_block> &block, virtual_range range) {
    for (auto &t : touched_) {
      if (t.block != block) continue;
      const device_address begin = std::min(t.range.begin, range.begin);
      t.range = {begin, std::max(t.range.end(), range.end()) - begin};
      return;
    }
    touched_.push_back({block, range});
  }

  // ---- the steps --------------------------------------------------------------------------------

  status perform() {
    STILLMAP_RETURN_IF_ERROR(map_all(arriving_, mapped_));
    const auto alike = [](const regrant &a, const regrant &b) {
      return a.now == b.now && follows(a.was, b.was);
    };
    const auto grant = [&](std::size_t first, std::size_t end) {
      regranted_done_ = end;  // a failed call may have done part of it
      return driver().set_access(span_of(regranted_[first].was, regranted_[end - 1].was),
                                 regranted_[first].now->data(), regranted_[first].now->size());
    };
    STILLMAP_RETURN_IF_ERROR(each_run(regranted_, regranted_.size(), alike, grant));
    const auto unmap = [&](std::size_t first, std::size_t end) -> status {
      STILLMAP_RETURN_IF_ERROR(driver().unmap(span_of(leaving_[first], leaving_[end - 1])));
      unmapped_ = end;
      return {};
    };
    STILLMAP_RETURN_IF_ERROR(each_run(leaving_, leaving_.size(), follows, unmap));
    return map_all(replacing_, remapped_);
  }

  status map_all(const std::vector<present> &pages, std::size_t &done) {
    for (const present &p : pages) {
      STILLMAP_RETURN_IF_ERROR(driver().map(p.range.begin, p.range.bytes, p.handle));
      ++done;
    }
    return grant_runs(pages, pages.size(), as_is);
  }

  // Sets the access of the first `count` elements, each of which `mapping` turns into a mapping.
  template <class Element, class Mapping>
  status grant_runs(const std::vector<Element> &list, std::size_t count, Mapping mapping) {
    const auto alike = [&](const Element &a, const Element &b) {
      return mapping(a).access() == mapping(b).access() && follows(mapping(a), mapping(b)) &&
             mapping(a).undo_failed == mapping(b).undo_failed;
    };
    return each_run(list, count, alike, [&](std::size_t first, std::size_t end) {
      const present &begin = mapping(list[first]);
      const auto &access = *begin.access();
      if (access.empty() || begin.undo_failed) return status{};
      const virtual_range run = span_of(begin, mapping(list[end - 1]));
      return driver().set_access(run, access.data(), access.size());
    });
  }
  static const present &as_is(const present &p) { return p; }

  // ---- the way back -----------------------------------------------------------------------------

  void undo() {
    unmap_first(replacing_, remapped_);
    for (std::size_t i = 0; i < unmapped_; ++i) {  // map the unmapped pages again
      present &p = leaving_[i];
      const status s = driver().map(p.range.begin, p.range.bytes, p.handle);
      p.undo_failed = !s;
      report_if_failed(s);
    }
    report_if_failed(grant_runs(leaving_, unmapped_, as_is));
    report_if_failed(grant_runs(regranted_, regranted_done_,
                                [](const regrant &r) -> const present & { return r.was; }));
    unmap_first(arriving_, mapped_);
    unmapped_ = 0;
    regranted_done_ = 0;
  }

  void unmap_first(std::vector<present> &pages, std::size_t &count) {
    const auto unmap = [&](std::size_t first, std::size_t end) -> status {
      const status s = driver().unmap(span_of(pages[first], pages[end - 1]));
      for (std::size_t i = first; i < end; ++i) pages[i].undo_failed = !s;
      report_if_failed(s);
      return {};  // the other runs are unmapped all the same
    };
    report_if_failed(each_run(pages, count, follows, unmap));
    count = 0;
  }

  // Records the driver's mappings in the ledger. leaving_ holds the unmapped pages, so that none
  // returns to its pool under the lock.
  void update_ledger(bool done) STILLMAP_EXCLUDES(space_.mutex_) {
    const lock_guard lock(space_.mutex_);
    auto leave = [&](const present &p) STILLMAP_REQUIRES(space_.mutex_) {
      mapping_entry &e = *mappings().find(p.range.begin);
      if (p.suspend_by == 0 || p.undo_failed) return space_.drop_locked(e);
      e.backing = ledger_page_ptr();  // leaving_ holds the page
      // Not the last owner: the plan has touched the block, and holds it.
      space_.suspend_locked(e, *space_.block_at_locked(p.range.begin), p.suspend_by);
    };
    auto enter = [&](present &p) STILLMAP_REQUIRES(space_.mutex_) {
      if (p.suspend_by != 0) space_.drop_locked(*mappings().find(p.range.begin));
      space_.stats_.mapped_bytes += p.range.bytes;
      mappings().insert(std::move(p.prepared));
    };
    for (std::size_t i = 0; i < leaving_.size(); ++i) {
      if (i < unmapped_ || leaving_[i].undo_failed) leave(leaving_[i]);
    }
    for (std::size_t i = 0; i < mapped_; ++i) enter(arriving_[i]);
    for (std::size_t i = 0; i < remapped_; ++i) enter(replacing_[i]);
    for (auto *list : {&replacing_, &arriving_}) {
      for (present &p : *list) {
        if (p.undo_failed) enter(p);  // also where it was suspended: the driver has a mapping there
      }
    }
    for (std::size_t i = 0; i < regranted_done_; ++i) {
      mappings().find(regranted_[i].was.range.begin)->access = regranted_[i].now;
    }
    if (done) {
      for (const virtual_range r : forgotten_) space_.forget_suspended_locked(r);
    }
    space_.stats_.live_mappings = mappings().size() - space_.suspended_;
  }

  void notify(backing_event::phase when) const STILLMAP_EXCLUDES(space_.mutex_) {
    for (const touched_range &t : touched_) space_.notify(when, *t.block, t.range);
  }

  // ---- runs -------------------------------------------------------------------------------------

  // Adjacent, and in one reservation: CUDA does not guarantee that one call may span two.
  static bool follows(const present &a, const present &b) {
    return a.range.end() == b.range.begin && a.block == b.block;
  }
  static virtual_range span_of(const present &first, const present &last) {
    return {first.range.begin, last.range.end() - first.range.begin};
  }
  // Calls act(first, end) for each run of the first `count` elements in which every element and its
  // successor are `alike`, until a call fails.
  template <class Element, class Alike, class Act>
  static status each_run(const std::vector<Element> &list, std::size_t count, Alike alike,
                         Act act) {
    for (std::size_t first = 0, end = 1; first < count; first = end++) {
      while (end < count && alike(list[end - 1], list[end])) ++end;
      STILLMAP_RETURN_IF_ERROR(act(first, end));
    }
    return {};
  }

  struct regrant {
    present was;
    access_ptr now;
  };

  address_space &space_;
  remap_plan &plan_;
  std::vector<present> arriving_, replacing_, leaving_;
  std::vector<regrant> regranted_;
  std::vector<touched_range> touched_;
  std::size_t mapped_ = 0, remapped_ = 0, unmapped_ = 0, regranted_done_ = 0;
  std::vector<virtual_range> forgotten_;  // suspended places that the plan unmaps
  // While the plan is checked:
  std::shared_ptr<address_block> target_block_;  // of the latest target
  virtual_range vacant_;                         // where nothing is mapped
};

// Retiring mappings count against Stillmap's ceiling and the driver's. On failure those that have passed
// their fence are unmapped and the plan is tried again; at Stillmap's ceiling the rest is waited for.
status address_space::apply(remap_plan &&plan) {
  return with_host_memory("address_space::apply", [&]() -> status {
    remap_plan mine = std::move(plan);
    if (mine.incomplete_) return host_out_of_memory();
    const status s = remap(*this, mine).run();
    if (s || !mine.adds_mappings()) return s;
    const bool full = s.error().is(errc::address_space_exhausted);
    if (!full && !s.error().is(errc::out_of_memory)) return s;
    const bool ours = full && s.error().code.category() == stillmap_category();
    return collect(ours) == 0 ? s : remap(*this, mine).run();
  });
}

}  // namespace stillmap
