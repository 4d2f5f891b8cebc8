#include "stillmap/vmm/internal/removal.h"

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/device_state.h"

namespace stillmap {

// In the order of the addresses, in which the pools will give the pages out again: a driver may map
// pages that were created one after the other with less work (on host memory: one mmap instead of many).
removal::~removal() {
  if (gone_.empty()) return;
  for (entry *e = gone_.front(); e != nullptr; e = list::after(*e)) e->clear();
  const lock_guard lock(space_.mutex_);
  while (entry *const e = gone_.pop_front()) {
    space_.ledger_->spare.give(std::unique_ptr<entry>(e));
  }
}

void removal::add_locked(const address_space &space, entry &e) {
  e.first_of_block = e.range.begin >= block_end_;
  if (e.first_of_block) {
    const auto block = space.block_at_locked(e.range.begin);
    block_end_ = block ? block->range().end() : e.range.end();
  }
  entries_.push_back(e);
}

void removal::take_retiring_locked(address_space &space, entry &in) {
  const auto together = [](const entry *a, const entry *b) {
    return a != nullptr && b != nullptr && a->retired == b->retired &&
           a->range.end() == b->range.begin;
  };
  entry *e = &in;
  while (together(list::before(*e), e)) e = list::before(*e);
  for (entry *next = nullptr; e != nullptr; e = next) {
    next = together(e, list::after(*e)) ? list::after(*e) : nullptr;
    space.ledger_->retiring.remove(*e);
    add_locked(space, *e);
  }
  for (e = entries_.front(); e != nullptr; e = list::after(*e)) e->retired = 0;
}

void removal::retire_again_locked(address_space &space) {
  const std::uint64_t now = space.next_retired_++;
  for (entry *e = entries_.front(); e != nullptr; e = list::after(*e)) e->retired = now;
  space.ledger_->retiring.append(entries_);
}

status removal::run() {
  const context_guard guard(driver(), space_.device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  notify(backing_event::phase::about_to_change);
  const status unmapped = unmap_all();
  update_ledger(unmapped.has_value());
  notify(unmapped ? backing_event::phase::changed : backing_event::phase::abandoned);
  set_gone_aside(unmapped.has_value());
  return unmapped;
}

const stillmap::driver &removal::driver() const {
  return *space_.device_.drv;
}

// The last entry before `stop` of the run that begins with `first`, in which each entry and its
// successor are `alike`.
template <class Alike>
removal::entry &removal::end_of_run(entry &first, const entry *stop, Alike alike) {
  entry *last = &first;
  for (entry *next = list::after(*last); next != stop && alike(*last, *next);
       next = list::after(*last)) {
    last = next;
  }
  return *last;
}

status removal::unmap_all() {
  for (entry *first = entries_.front(); first != nullptr;) {
    entry &last = end_of_run(*first, nullptr, follows);
    if (const status s = driver().unmap(span_of(*first, last)); !s) {
      undo(*first);
      return s;
    }
    first = list::after(last);
  }
  return {};
}

// Maps the entries before `stop` again.
void removal::undo(const entry &stop) {
  for (entry *e = entries_.front(); e != &stop; e = list::after(*e)) {
    const status s = driver().map(e->range.begin, e->range.bytes, e->backing->handle());
    e->lost = !s;
    report_if_failed(s);
  }
  const auto alike = [](const entry &a, const entry &b) {
    return follows(a, b) && a.access == b.access && a.lost == b.lost;
  };
  for (entry *first = entries_.front(); first != &stop;) {
    entry &last = end_of_run(*first, &stop, alike);
    const auto &access = *first->access;
    if (!first->lost && !access.empty()) {
      report_if_failed(driver().set_access(span_of(*first, last), access.data(), access.size()));
    }
    first = list::after(last);
  }
}

// Without an error, all of the entries are gone; with one, those that could not be mapped again.
void removal::update_ledger(bool done) {
  const lock_guard lock(space_.mutex_);
  for (entry *e = entries_.front(); e != nullptr; e = list::after(*e)) {
    if (done || e->lost) static_cast<void>(space_.take_locked(*e).release());
  }
  if (done) space_.forget_suspended_locked(forget_);
  space_.stats_.live_mappings = space_.ledger_->mappings.size() - space_.suspended_;
}

void removal::set_gone_aside(bool all) {
  if (all) return gone_.append(entries_);
  for (entry *e = entries_.front(), *next = nullptr; e != nullptr; e = next) {
    next = list::after(*e);
    if (!e->lost) continue;
    entries_.remove(*e);
    gone_.push_back(*e);
  }
}

// One event for each block.
void removal::notify(backing_event::phase when) const {
  const auto same_block = [](const entry &, const entry &next) { return !next.first_of_block; };
  for (entry *first = entries_.front(); first != nullptr;) {
    entry &last = end_of_run(*first, nullptr, same_block);
    if (const auto block = space_.block_at(first->range.begin)) {
      if (when == backing_event::phase::changed) {
        block->generation_.fetch_add(1, std::memory_order_acq_rel);
      }
      space_.notify(when, *block, span_of(*first, last));
    }
    first = list::after(last);
  }
}

}  // namespace stillmap
