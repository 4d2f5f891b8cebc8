#include "stillmap/allocators/admission/quota_seat.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "stillmap/allocators/internal/room.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

thread_local int giving_back = 0;  // scopes of outside_room

}  // namespace

quota_seat::outside_room::outside_room() {
  ++giving_back;
}
quota_seat::outside_room::~outside_room() {
  --giving_back;
}

quota_seat::~quota_seat() {
  if (!joined_ || !ledger_.file().is_open()) return;
  const status left = transact([&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
    STILLMAP_RETURN_IF_ERROR(ledger_.file().write_slot(slot_, {}, {}));
    return ledger_.note(
        t, {.bytes = own_.reserved, .action = quota_action::left, .process = process_});
  });
  // Otherwise another frees the slot, as that of one that died: the kernel drops its lock.
  (void)left;
}

status quota_seat::take(quota_table &t, const quota_terms &terms) {
  STILLMAP_RETURN_IF_ERROR(quota_rules::check(terms));
  STILLMAP_RETURN_IF_ERROR(ledger_.remove_dead(t, quota_ledger::npos));
  const std::uint64_t left = t.header.limit - std::min(t.header.limit, t.minima());
  if (terms.minimum > left) {
    return make_error(errc::invalid_argument,
                      "the minimum exceeds what the limit leaves beside the minima of the others",
                      terms.minimum, left, error_unit::bytes);
  }
  for (std::size_t i = 0; i < quota_table::max_slots; ++i) {
    // A slot is free if its lock can be taken, whatever its last owner left in it.
    if (!ledger_.file().try_lock_slot(i)) continue;
    process_ = static_cast<std::uint32_t>(::getpid());
    const quota_share s{quota_holding::of(0, process_), terms.minimum, terms.maximum};
    t.shares[i] = s;
    t.exchanges[i] = {.priority = terms.priority};
    STILLMAP_RETURN_IF_ERROR(ledger_.file().write_slot(i, s, t.exchanges[i]));
    if (i >= t.header.used) {
      t.header.used = i + 1;
      STILLMAP_RETURN_IF_ERROR(ledger_.file().write_header(t.header));
    }
    slot_ = i;
    own_ = s.holding;
    joined_ = true;
    return ledger_.note(t, {.action = quota_action::joined, .process = process_});
  }
  return make_error(errc::busy, "the quota has no free slot for a participant",
                    quota_table::max_slots, quota_table::max_slots, error_unit::items);
}

status quota_seat::check_not_forked() const {
  if (ledger_.file().is_open()) return {};
  return make_error(errc::not_supported, "the process is a forked child of the participant");
}

// ---- reserving and releasing ----

status quota_seat::reserve(std::uint64_t bytes) {
  std::uint64_t from_rooms = 0;
  if (has_rooms_.load(std::memory_order_relaxed) && ledger_.file().is_open()) {
    const ledger_threads threads(ledger_.mutex);
    each_room([&](room &r) {
      const std::uint64_t part = std::min(r.left, bytes - from_rooms);
      r.left -= part;
      from_rooms += part;
    });
  }
  if (from_rooms == bytes && bytes != 0) return {};
  const status rest = transact(
      [&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
        STILLMAP_ASSIGN_OR_RETURN(const auto d, decide(t, bytes - from_rooms));
        if (d.what != quota_rules::verdict::granted) return refusal(d, bytes);
        return grant(t, bytes - from_rooms, d, false);
      },
      quota_part::grant);
  if (!rest && from_rooms != 0) {
    const ledger_threads threads(ledger_.mutex);
    give_to_rooms(from_rooms);
  }
  return rest;
}

result<quota_rules::decision> quota_seat::decide(quota_table &t, std::uint64_t bytes) {
  const auto d = quota_rules(t).decide(slot_, bytes);
  if (d.what == quota_rules::verdict::granted) return d;
  STILLMAP_RETURN_IF_ERROR(ledger_.remove_dead(t, slot_));
  return quota_rules(t).decide(slot_, bytes);
}

status quota_seat::refusal(const quota_rules::decision &d, std::uint64_t bytes) {
  switch (d.what) {
    case quota_rules::verdict::beyond_maximum:
      return make_error(errc::out_of_memory, "the request exceeds the participant's maximum", bytes,
                        d.left, error_unit::bytes);
    case quota_rules::verdict::beyond_limit:
      return make_error(errc::out_of_memory,
                        "the request exceeds the limit less the minima of the others", bytes,
                        d.left, error_unit::bytes);
    default:
      return make_error(errc::out_of_memory, "the request exceeds the bytes left in the quota",
                        bytes, d.left, error_unit::bytes);
  }
}

status quota_seat::grant(quota_table &t, std::uint64_t bytes, const quota_rules::decision &d,
                         bool for_room) {
  quota_share &own = t.shares[slot_];
  if (for_room) make_room(rooms_);
  if (d.anyone_waits && own_.reserved + bytes > own.minimum) {
    const quota_rules rules(t);
    const std::uint64_t ticket = t.exchanges[slot_].wait.ticket;
    for (std::size_t i = 0; i < t.header.used; ++i) {
      quota_exchange &e = t.exchanges[i];
      const bool earlier = !rules.waits(slot_) || e.wait.ticket < ticket;
      if (i == slot_ || !rules.waits(i) || !earlier || rules.is_before(i, slot_)) continue;
      ++e.wait.overtaken;
      STILLMAP_RETURN_IF_ERROR(ledger_.file().write(i, e, &quota_exchange::wait));
    }
  }
  STILLMAP_RETURN_IF_ERROR(write(own_.reserved + bytes));
  own.holding = own_;
  if (!for_room) return {};
  rooms_.push_back({std::this_thread::get_id(), bytes, bytes});
  has_rooms_ = true;
  return {};
}

status quota_seat::release(std::uint64_t bytes) {
  STILLMAP_RETURN_IF_ERROR(check_not_forked());
  const ledger_threads threads(ledger_.mutex);
  std::uint64_t in_rooms = 0;
  for (const room &r : rooms_) in_rooms += r.left;
  if (bytes > own_.reserved - in_rooms) {
    return make_error(errc::invalid_argument, "the bytes exceed this participant's reservation",
                      bytes, own_.reserved - in_rooms, error_unit::bytes);
  }
  // Without the lock of the ledger, so that it never waits for another process: no other process
  // writes what a participant holds while that lives.
  quota_holding found;
  STILLMAP_RETURN_IF_ERROR(ledger_.file().read_holding(slot_, found));
  if (found != own_) return quota_ledger::truncated();
  const std::uint64_t to_rooms = giving_back != 0 ? 0 : give_to_rooms(bytes);
  return to_rooms == bytes ? status() : write(own_.reserved - (bytes - to_rooms));
}

void quota_seat::end_room() noexcept {
  if (!ledger_.file().is_open()) return;
  const ledger_threads threads(ledger_.mutex);
  const auto mine = [](const room &r) { return r.thread == std::this_thread::get_id(); };
  const auto it = std::find_if(rooms_.rbegin(), rooms_.rend(), mine);
  if (it == rooms_.rend()) return;
  const std::uint64_t left = it->left;
  rooms_.erase(std::next(it).base());
  has_rooms_ = !rooms_.empty();
  quota_holding found;
  // Otherwise the next call says what is wrong.
  if (left == 0 || !ledger_.file().read_holding(slot_, found) || found != own_) return;
  (void)write(own_.reserved - left);
}

// The rooms of this thread, the latest first.
template <class Use>
void quota_seat::each_room(Use use) {
  for (auto it = rooms_.rbegin(); it != rooms_.rend(); ++it) {
    if (it->thread == std::this_thread::get_id()) use(*it);
  }
}

// Returns what they had given.
std::uint64_t quota_seat::give_to_rooms(std::uint64_t bytes) {
  std::uint64_t given = 0;
  each_room([&](room &r) {
    const std::uint64_t part = std::min(r.bytes - r.left, bytes - given);
    r.left += part;
    given += part;
  });
  return given;
}

status quota_seat::write(std::uint64_t reserved) {
  const quota_holding now = quota_holding::of(reserved, process_);
  STILLMAP_RETURN_IF_ERROR(ledger_.file().write_holding(slot_, now));
  own_ = now;
  return {};
}

}  // namespace stillmap
