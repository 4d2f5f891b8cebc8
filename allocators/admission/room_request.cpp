#include "stillmap/allocators/admission/room_request.h"

#include <algorithm>
#include <utility>

#include "stillmap/allocators/admission/quota_bell.h"
#include "stillmap/allocators/internal/room.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
room_request::room_request(quota_ledger &l, quota_seat &seat, std::uint64_t bytes,
                           clock::time_point until)
    : ledger_(l), seat_(seat), bytes_(bytes), began_(clock::now()), until_(until) {}

std::chrono::nanoseconds room_request::waited() const {
  return clock::now() - began_;
}

status room_request::prepare_measure() {
  const auto look = [&](quota_table &t) -> status {
    held_before_ = t.held();
    return {};
  };
  return seat_.transact(look, quota_part::grant);
}

result<room_request::progress> room_request::look(std::optional<device_use> use) {
  ring_.clear();
  result<progress> out = progress::waits;
  const status done = seat_.transact([&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
    if (use) STILLMAP_RETURN_IF_ERROR(note_use(t, *use));
    STILLMAP_ASSIGN_OR_RETURN(out, look_at(t));
    return {};
  });
  if (!done) return tl::unexpected<error>(done.error());
  return out;
}

result<room_request::progress> room_request::look_at(quota_table &t) {
  const quota_exchange &own = t.exchanges[seat_.slot()];
  is_asked_itself_ = own.ask.number != own.answer.number;
  STILLMAP_ASSIGN_OR_RETURN(const auto d, seat_.decide(t, bytes_));
  if (d.what == quota_rules::verdict::granted) {
    STILLMAP_RETURN_IF_ERROR(seat_.grant(t, bytes_, d, true));
    STILLMAP_RETURN_IF_ERROR(end(t, quota_action::granted));
    return progress::granted;
  }
  if (d.what != quota_rules::verdict::wait) {
    STILLMAP_RETURN_IF_ERROR(end(t, quota_action::busy));
    return tl::unexpected(quota_seat::refusal(d, bytes_).error());
  }
  if (clock::now() >= until_) {
    error e = busy(t, d);
    STILLMAP_RETURN_IF_ERROR(end(t, quota_action::busy));
    return tl::unexpected(std::move(e));
  }
  STILLMAP_RETURN_IF_ERROR(begin(t));
  STILLMAP_RETURN_IF_ERROR(ask(t, d.missing));
  return progress::waits;
}

void room_request::ring() {
  for (const std::size_t slot : ring_) quota_bell::ring(ledger_.path(), slot);
}

void room_request::withdraw() noexcept {
  if (ticket_ == 0) return;
  const status done = seat_.transact([&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
    return end(t, quota_action::busy);
  });
  (void)done;  // its time ends it for the others
}

// ---- the entry in the table ----

status room_request::begin(quota_table &t) {
  if (ticket_ != 0) return {};
  quota_exchange &own = t.exchanges[seat_.slot()];
  own.wait = {.ticket = ++t.header.last_ticket, .bytes = bytes_, .until = quota_time(until_)};
  // First: nobody reads a wait before.
  t.header.waits_until = std::max(t.header.waits_until, own.wait.until);
  STILLMAP_RETURN_IF_ERROR(ledger_.file().write_header(t.header));
  STILLMAP_RETURN_IF_ERROR(ledger_.file().write(seat_.slot(), own, &quota_exchange::wait));
  ticket_ = own.wait.ticket;
  return ledger_.note(t,
                      {.bytes = bytes_, .action = quota_action::waits, .process = seat_.process()});
}

status room_request::end(quota_table &t, quota_action how) {
  // That of this request, or one that could not be withdrawn.
  quota_exchange &own = t.exchanges[seat_.slot()];
  if (own.wait.ticket != 0) {
    overtaken_ = own.wait.overtaken;
    own.wait = {};
    STILLMAP_RETURN_IF_ERROR(ledger_.file().write(seat_.slot(), own, &quota_exchange::wait));
    ticket_ = 0;
    t.header.waits_until = t.last_wait_ends();  // written with the event
  }
  return ledger_.note(t,
                      {.bytes = bytes_,
                       .waited = static_cast<std::uint64_t>(
                           std::chrono::duration_cast<std::chrono::microseconds>(waited()).count()),
                       .action = how,
                       .process = seat_.process()});
}

// What is in use beside what participants have reserved: what the driver and other processes need, and memory of
// dead ones that the driver has not released yet.
status room_request::note_use(quota_table &t, device_use use) {
  // It is reserved before it is created, and until it is released: what the device counted is reserved now, or was
  // before.
  const std::uint64_t held = std::max(held_before_, t.held());
  const std::uint64_t outside = use.used > held ? use.used - held : 0;
  if (t.header.device_bytes == use.total && t.header.outside == outside) return {};
  t.header.device_bytes = use.total;
  t.header.outside = outside;
  return ledger_.file().write_header(t.header);
}

// ---- asking ----

status room_request::ask(quota_table &t, std::uint64_t missing) {
  std::uint64_t coming = read_answers(t);
  const auto now = clock::now();
  if (round_over_ != clock::time_point() && now >= round_over_ + ask_again) {
    asked_.clear();
    kind_ = reclaim_kind::cached;
    round_over_ = {};
  }
  const quota_rules rules(t);
  while (coming < missing && round_over_ == clock::time_point()) {
    for (const quota_rules::target &whom : rules.targets(seat_.slot(), kind_)) {
      if (coming >= missing) break;
      if (is_asked(whom.slot, t)) continue;
      const quota_exchange &e = t.exchanges[whom.slot];
      // One question at a time: what it gives to another who waits is not to be counted twice. But who comes
      // first asks first.
      const bool is_busy = e.ask.number != e.answer.number && e.ask.by != seat_.slot() &&
                           rules.is_asking(e.ask) && !rules.is_before(seat_.slot(), e.ask.by);
      if (is_busy) continue;
      const std::uint64_t bytes = std::min(whom.above_minimum, missing - coming);
      STILLMAP_RETURN_IF_ERROR(ask_one(t, whom, bytes));
      coming += bytes;
    }
    if (coming != 0) return {};  // others, and other kinds, are asked once these have answered
    if (kind_ == reclaim_kind::task) {
      round_over_ = now;
    } else {
      kind_ = static_cast<reclaim_kind>(static_cast<int>(kind_) + 1);
    }
  }
  return {};
}

// Returns the bytes that may still come from those that were asked.
std::uint64_t room_request::read_answers(const quota_table &t) {
  std::uint64_t coming = 0;
  const auto now = clock::now();
  for (asked &a : asked_) {
    if (a.answered) continue;
    const quota_exchange &e = t.exchanges[a.slot];
    if (t.shares[a.slot].holding.process != a.process || e.answer.number >= a.number) {
      a.answered = true;
    } else if (e.later == a.number) {
      a.in_use = true;
    } else if (now - a.at < answer_time) {
      coming += a.bytes;
    } else if (std::find(silent_.begin(), silent_.end(), a.process) == silent_.end()) {
      silent_.push_back(a.process);
    }
  }
  return coming;
}

bool room_request::is_asked(std::size_t slot, const quota_table &t) const {
  return std::any_of(asked_.begin(), asked_.end(), [&](const asked &a) {
    return a.slot == slot && a.process == t.shares[slot].holding.process && a.kind == kind_;
  });
}

status room_request::ask_one(quota_table &t, const quota_rules::target &whom, std::uint64_t bytes) {
  const std::uint32_t process = t.shares[whom.slot].holding.process;
  quota_exchange &e = t.exchanges[whom.slot];
  make_room(asked_);
  make_room(silent_, asked_.size() + 1);
  ring_.push_back(whom.slot);
  e.ask = {.number = e.ask.number + 1,
           .bytes = bytes,
           .ticket = ticket_,
           .by = static_cast<std::uint32_t>(seat_.slot()),
           .kind = kind_};
  STILLMAP_RETURN_IF_ERROR(ledger_.file().write(whom.slot, e, &quota_exchange::ask));
  asked_.push_back({whom.slot, process, e.ask.number, bytes, kind_, clock::now()});
  return ledger_.note(t, {.bytes = bytes,
                          .action = quota_action::asked,
                          .process = process,
                          .other = seat_.process(),
                          .kind = static_cast<std::uint32_t>(kind_)});
}

// Names those that hold most, and those that did not answer.
error room_request::busy(const quota_table &t, const quota_rules::decision &d) const {
  std::vector<const quota_share *> holders;
  for (std::size_t i = 0; i < t.header.used; ++i) {
    if (i != seat_.slot() && t.shares[i].is_taken()) holders.push_back(&t.shares[i]);
  }
  std::sort(holders.begin(), holders.end(), [](const quota_share *a, const quota_share *b) {
    return a->reserved() > b->reserved();
  });
  constexpr std::size_t most_named = 8;
  std::string who;
  for (std::size_t i = 0; i < holders.size() && i < most_named; ++i) {
    const std::uint32_t process = holders[i]->holding.process;
    who += (i == 0 ? "" : ", ") + ("process " + std::to_string(process)) + " holds " +
           format_bytes(holders[i]->reserved());
    if (std::find(silent_.begin(), silent_.end(), process) != silent_.end()) {
      who += " and did not answer";
    } else if (std::any_of(asked_.begin(), asked_.end(), [&](const asked &a) {
                 return a.process == process && a.in_use && !a.answered;
               })) {
      who += " in use";
    }
  }
  if (holders.size() > most_named) {
    who += ", and " + std::to_string(holders.size() - most_named) + " more";
  }
  if (t.header.outside != 0) {
    who += (who.empty() ? "" : ", ") +
           ("others than participants use " + format_bytes(t.header.outside) + " of the device");
  }
  const auto e =
      make_error(errc::busy, "others hold the memory, and did not give back enough in time", bytes_,
                 d.left, error_unit::bytes);
  return e.value().with({.found = who});
}

}  // namespace stillmap
