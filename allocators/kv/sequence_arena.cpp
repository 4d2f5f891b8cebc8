#include "stillmap/allocators/kv/sequence_arena.h"

#include <algorithm>

#include "stillmap/allocators/kv/internal/create_pool.h"
#include "stillmap/allocators/kv/internal/group_store.h"
#include "stillmap/allocators/kv/internal/pool_release.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/context.h"

namespace stillmap::kv {

result<std::unique_ptr<sequence_arena>> sequence_arena::create(const stillmap::device &d,
                                                               sequence_arena_options options) {
  return with_host_memory(
      "kv::sequence_arena::create", [&]() -> result<std::unique_ptr<sequence_arena>> {
        if (options.sequences == 0 || options.sequences > UINT32_MAX / 4) {
          return make_error(errc::invalid_argument, "the number of sequences is 0 or too large",
                            options.sequences, UINT32_MAX / 4, error_unit::items);
        }
        if (options.longest == 0) {
          return make_error(errc::invalid_argument, "the longest sequence has no tokens");
        }
        const bool own_pool = !options.pool;
        STILLMAP_RETURN_IF_ERROR(choose_pool(d, options.pool));
        STILLMAP_ASSIGN_OR_RETURN(const kv::layout l,
                                  kv::layout::create(options.shape, 1, options.pool->page_bytes(),
                                                     options.layers_per_range));
        // A removed sequence's addresses cannot be used until the worker has unmapped them.
        const std::size_t slots = options.sequences * 2;
        const std::size_t most = (SIZE_MAX >> 1) / l.block_stride();
        if (options.longest > most || l.pages_of(0, options.longest).count > UINT32_MAX / slots) {
          return make_error(errc::invalid_argument, "the sequences exceed any address space",
                            options.longest, most, error_unit::items);
        }
        STILLMAP_ASSIGN_OR_RETURN(
            auto store, group_store::create(d, l,
                                            {.groups = l.pages_of(0, options.longest).count * slots,
                                             .sharing = true,
                                             .pool = options.pool,
                                             .trims_pool = own_pool,
                                             .tag = options.tag}));
        return std::unique_ptr<sequence_arena>(
            new sequence_arena(l, std::move(store), options, slots));
      });
}

sequence_arena::sequence_arena(kv::layout l, std::unique_ptr<group_store> store,
                               const sequence_arena_options &options, std::size_t slots)
    : layout_(l),
      longest_(options.longest),
      sequences_(options.sequences),
      spare_groups_(options.spare_bytes / l.group_bytes()),
      groups_per_slot_(l.pages_of(0, options.longest).count),
      store_(std::move(store)),
      slots_(slots) {
  for (auto *list : {&warm_, &cold_, &cooling_, &leaving_, &pending_, &heirs_})
    list->reserve(slots);
  for (std::size_t s = slots; s-- > 0;) cold_.push_back(static_cast<std::uint32_t>(s));
}

sequence_arena::~sequence_arena() = default;

device_address sequence_arena::tensor(sequence_id s, std::uint32_t layer,
                                      std::uint32_t tensor) const {
  return store_->address(layout_.range_of(layer), group(s.slot, 0)) +
         layout_.offset_in_range(layer, tensor);
}

virtual_range sequence_arena::range() const {
  return store_->block()->range();
}

const device &sequence_arena::device() const {
  return store_->device();
}

const std::string &sequence_arena::tag() const {
  return store_->block()->tag();
}

std::uint64_t sequence_arena::generation() const {
  return store_->block()->generation();
}

bool sequence_arena::has(sequence_id s) const {
  return s.slot < slots_.size() && slots_[s.slot].live && slots_[s.slot].serial == s.serial;
}

status sequence_arena::check_live(sequence_id s) const {
  if (has(s)) return {};
  return make_error(errc::invalid_argument, "there is no such sequence, or no longer", s.slot);
}

// ---- steps -----------------------------------------------------------------------------------------

status sequence_arena::prepare(stream_ref stream) {
  const operation_scope scope("kv::sequence_arena::prepare");
  STILLMAP_RETURN_IF_ERROR(group_store::check(stream));
  if (store_->suspended()) return suspended_error();
  trim_inherited();
  trim_spare(std::exchange(is_starved_, false) ? 0 : spare_groups_);
  return store_->start(stream);
}

status sequence_arena::begin_step(stream_ref stream) {
  const operation_scope scope("kv::sequence_arena::begin_step");
  if (store_->suspended()) return suspended_error();
  ++stats_.steps;
  if (pending_.empty() && cooling_.empty() && leaving_.empty() && store_->settled()) return {};
  if (!store_->idle()) ++stats_.steps_that_waited;
  const status done = store_->finish();
  is_starved_ = !done && done.error().is(errc::out_of_memory);
  take_ready();
  const status copied = copy_tails(stream);
  free_leaving();
  return done ? copied : done;
}

bool sequence_arena::settled() const {
  return store_->settled();
}

// After the worker: a sequence has memory up to its first page group that has none. Where the wish for that came after
// the latest prepare(), it waits for the next; where it failed, what is beyond is given up.
void sequence_arena::take_ready() {
  std::erase_if(pending_, [&](std::uint32_t i) {
    slot &s = slots_[i];
    while (s.ready < s.wanted && store_->mapped(group(i, s.ready))) ++s.ready;
    if (s.ready < s.wanted && store_->waiting(group(i, s.ready))) return false;
    if (s.ready < s.forked) break_fork(i, s.ready);
    shrink(i, s.ready);
    s.pending = false;
    return true;
  });
  std::erase_if(cooling_, [&](std::uint32_t i) {
    for (std::size_t g = 0; g < slots_[i].used; ++g) {
      if (!store_->resting(group(i, g))) return false;
    }
    slots_[i].used = 0;
    cold_.insert(cold_.begin(), i);  // taken last: its pages may still wait for their fence
    return true;
  });
}

// A fork that has not got what it was made of holds `groups` page groups of it, and gets no more.
void sequence_arena::break_fork(std::uint32_t i, std::uint32_t groups) {
  slot &s = slots_[i];
  shrink(i, groups);
  s.asked = std::min(s.asked, groups);
  s.is_broken = true;
}

// Of the forks that have their memory.
status sequence_arena::copy_tails(stream_ref stream) {
  if (copies_.empty()) return {};
  const driver &drv = store_->device().driver();
  const context_guard guard(drv, store_->device().context());
  status outcome = guard.entered();
  std::erase_if(copies_, [&](const tail_copy &c) {
    if (slots_[c.to].is_broken) return true;
    if (slots_[c.to].ready <= c.group) return false;
    for (std::uint32_t r = 0; outcome && r < layout_.ranges(); ++r) {
      outcome = drv.copy_on_device_async(store_->address(r, group(c.to, c.group)),
                                         store_->address(r, group(c.from, c.group)), c.bytes,
                                         stream.get());
    }
    if (outcome) {
      ++stats_.copied_groups;
    } else {
      break_fork(c.to, c.group);
    }
    return true;
  });
  return outcome;
}

// ---- sequences -------------------------------------------------------------------------------------

// A slot for a new sequence: without memory, or preferably with that of a removed one.
result<std::uint32_t> sequence_arena::take_slot(bool with_memory) {
  if (stats_.sequences == sequences_) {
    return make_error(errc::address_space_exhausted, "there are as many sequences as there can be",
                      sequences_ + 1, sequences_, error_unit::items);
  }
  auto &from = with_memory && !warm_.empty() ? warm_ : cold_;
  if (from.empty()) {
    return make_error(errc::address_space_exhausted,
                      "the addresses of removed sequences are still in use: begin a step first",
                      slots_.size(), slots_.size() - cooling_.size(), error_unit::items);
  }
  const std::uint32_t i = from.back();
  from.pop_back();
  slot &s = slots_[i];
  s.live = true;
  s.is_broken = false;
  s.asked = s.forked = 0;
  ++s.serial;
  spare_ -= s.wanted;
  ++stats_.sequences;
  return i;
}

result<sequence_id> sequence_arena::add() {
  const operation_scope scope("kv::sequence_arena::add");
  STILLMAP_ASSIGN_OR_RETURN(const std::uint32_t i, take_slot(true));
  if (slots_[i].wanted != 0 && !std::exchange(slots_[i].heir, true)) heirs_.push_back(i);
  return sequence_id{i, slots_[i].serial};
}

// Wishes for page groups up to `groups`.
void sequence_arena::grow(std::uint32_t i, std::uint32_t groups) {
  slot &s = slots_[i];
  if (groups <= s.wanted) return;
  while (s.wanted < groups) store_->want(group(i, s.wanted++));
  s.used = std::max(s.used, s.wanted);
  if (!std::exchange(s.pending, true)) pending_.push_back(i);
}

// Gives page groups from `groups` on up.
void sequence_arena::shrink(std::uint32_t i, std::uint32_t groups) {
  slot &s = slots_[i];
  while (s.wanted > groups) store_->give_up(group(i, --s.wanted));
  s.ready = std::min(s.ready, s.wanted);
  s.forked = std::min(s.forked, s.wanted);
}

status sequence_arena::reserve(sequence_id s, std::size_t tokens) {
  const operation_scope scope("kv::sequence_arena::reserve");
  STILLMAP_RETURN_IF_ERROR(check_live(s));
  if (tokens > longest_) {
    return make_error(errc::invalid_argument,
                      "the sequence is longer than the longest there can be", tokens, longest_,
                      error_unit::items);
  }
  const auto groups = static_cast<std::uint32_t>(groups_for(tokens));
  if (slots_[s.slot].is_broken && groups > slots_[s.slot].wanted) {
    return make_error(errc::busy,
                      "the fork has not got the tokens of its source: remove it and fork again",
                      tokens, capacity(s), error_unit::items);
  }
  slots_[s.slot].asked = std::max(slots_[s.slot].asked, groups);
  grow(s.slot, groups);
  return {};
}

std::size_t sequence_arena::capacity(sequence_id s) const {
  if (!has(s)) return 0;
  const slot &of = slots_[s.slot];
  const std::size_t bytes = std::min(of.ready, of.asked) * layout_.page_bytes();
  return std::min(longest_, bytes / layout_.block_stride());
}

status sequence_arena::release_beyond(sequence_id s, std::size_t tokens) {
  const operation_scope scope("kv::sequence_arena::release_beyond");
  STILLMAP_RETURN_IF_ERROR(check_live(s));
  const std::size_t keep = groups_for(std::min(tokens, longest_));
  if (keep > slots_[s.slot].wanted) return {};
  // Also where no page group is given up: what is beyond would be written again.
  if (keep > layout_.pages_within(0, std::min(tokens, longest_)).count &&
      store_->shared(group(s.slot, keep - 1))) {
    return make_error(errc::busy,
                      "the page of the last token is shared: fork the sequence and remove it",
                      tokens, 0, error_unit::items);
  }
  if (keep == slots_[s.slot].wanted) return {};
  if (slots_[s.slot].pending || copied_from(s.slot)) {
    return make_error(errc::busy, "the sequence was forked or grows: begin the step first");
  }
  shrink(s.slot, static_cast<std::uint32_t>(keep));
  slots_[s.slot].asked = slots_[s.slot].wanted;
  return {};
}

result<sequence_id> sequence_arena::fork(sequence_id of, std::size_t tokens) {
  return with_host_memory("kv::sequence_arena::fork", [&]() -> result<sequence_id> {
    STILLMAP_RETURN_IF_ERROR(check_live(of));
    if (tokens > capacity(of)) {
      return make_error(errc::invalid_argument, "the sequence has no memory for as many tokens",
                        tokens, capacity(of), error_unit::items);
    }
    copies_.reserve(copies_.size() + 1);
    STILLMAP_ASSIGN_OR_RETURN(const std::uint32_t i, take_slot(false));
    slot &s = slots_[i];
    const std::size_t full = layout_.pages_within(0, tokens).count;
    while (s.wanted < full) {
      store_->want_shared(group(i, s.wanted), group(of.slot, s.wanted));
      ++s.wanted;
    }
    const std::size_t rest = tokens * layout_.block_stride() - full * layout_.page_bytes();
    if (rest != 0) copies_.push_back({of.slot, i, static_cast<std::uint32_t>(full), rest});
    grow(i, static_cast<std::uint32_t>(groups_for(tokens)));
    s.used = s.asked = s.forked = s.wanted;
    if (full != 0 && !std::exchange(s.pending, true)) pending_.push_back(i);
    return sequence_id{i, s.serial};
  });
}

status sequence_arena::remove(sequence_id s) {
  const operation_scope scope("kv::sequence_arena::remove");
  STILLMAP_RETURN_IF_ERROR(check_live(s));
  slot &gone = slots_[s.slot];
  gone.live = false;
  --stats_.sequences;
  std::erase_if(copies_, [&](const tail_copy &c) { return c.to == s.slot; });
  if (copied_from(s.slot)) {
    shrink(s.slot, gone.ready);
    leaving_.push_back(s.slot);
  } else {
    free_slot(s.slot);
  }
  return {};
}

// A fork has still to copy the end of it.
bool sequence_arena::copied_from(std::uint32_t i) const {
  return std::any_of(copies_.begin(), copies_.end(),
                     [&](const tail_copy &c) { return c.from == i; });
}

void sequence_arena::free_slot(std::uint32_t i) {
  const slot &gone = slots_[i];
  bool keeps = !gone.pending && gone.wanted != 0;
  for (std::size_t g = 0; keeps && g < gone.wanted; ++g) keeps = !store_->shared(group(i, g));
  if (keeps) {
    spare_ += gone.wanted;
    warm_.push_back(i);
  } else {
    shrink(i, 0);
    cooling_.push_back(i);
  }
}

status sequence_arena::check_settled() const {
  if (store_->suspended()) return suspended_error();
  if (settled()) return {};
  return make_error(errc::busy, "the arena's worker changes its memory: begin_step() first");
}

void sequence_arena::free_leaving() {
  std::erase_if(leaving_, [&](std::uint32_t i) {
    if (copied_from(i)) return false;
    free_slot(i);
    return true;
  });
}

// ---- sequences that were saved ---------------------------------------------------------------------

status sequence_arena::check(std::span<const sequence_place> places) const {
  const operation_scope scope("kv::sequence_arena::check");
  if (places.size() > sequences_) {
    return make_error(errc::invalid_argument, "there are more sequences than there can be",
                      places.size(), sequences_, error_unit::items);
  }
  const auto full = [&](const sequence_place &p) {
    return layout_.pages_within(0, p.tokens).count;
  };
  std::vector<bool> taken(slots_.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const sequence_place &p = places[i];
    if (p.slot >= slots_.size() || taken[p.slot]) {
      return make_error(errc::invalid_argument, "the slot is none, or is named twice", p.slot,
                        slots_.size());
    }
    taken[p.slot] = true;
    if (p.tokens > longest_) {
      return make_error(errc::invalid_argument,
                        "the sequence is longer than the longest there can be", p.tokens, longest_,
                        error_unit::items);
    }
    if (p.shared != 0 && (p.with >= i || p.shared > full(p) || p.shared > full(places[p.with]))) {
      return make_error(errc::invalid_argument,
                        "the sequence cannot share as many page groups with the other", p.slot);
    }
  }
  return {};
}

// Wishes for what each has for itself.
void sequence_arena::begin(std::span<const sequence_place> places) {
  for (const sequence_place &p : places) {
    slot &s = slots_[p.slot];
    s.live = true;
    s.is_broken = false;
    s.asked = s.wanted = s.used = static_cast<std::uint32_t>(groups_for(p.tokens));
    ++s.serial;
    for (std::uint32_t g = p.shared; g < s.wanted; ++g) store_->want(group(p.slot, g));
  }
  std::erase_if(cold_, [&](std::uint32_t i) { return slots_[i].live; });
  stats_.sequences += places.size();
}

// Wishes for what they share, once it is there. False if that is nothing.
bool sequence_arena::share(std::span<const sequence_place> places) {
  bool any = false;
  for (const sequence_place &p : places) {
    for (std::uint32_t g = 0; g < p.shared; ++g) {
      std::uint32_t from = p.with;
      while (g < places[from].shared) from = places[from].with;
      store_->want_shared(group(p.slot, g), group(places[from].slot, g));
      any = true;
    }
  }
  return any;
}

bool sequence_arena::has_all(std::span<const sequence_place> places) {
  return std::all_of(places.begin(), places.end(), [&](const sequence_place &p) {
    slot &s = slots_[p.slot];
    while (s.ready < s.wanted && store_->mapped(group(p.slot, s.ready))) ++s.ready;
    return s.ready == s.wanted;
  });
}

template <class Work>
result<std::vector<sequence_id>> sequence_arena::make(std::span<const sequence_place> places,
                                                      const Work &work) {
  STILLMAP_RETURN_IF_ERROR(check_settled());
  if (stats_.sequences != 0) {
    return make_error(errc::busy, "the arena has sequences: take one that has none",
                      stats_.sequences, 0, error_unit::items);
  }
  STILLMAP_RETURN_IF_ERROR(check(places));
  std::vector<sequence_id> made(places.size());
  free_leaving();
  STILLMAP_RETURN_IF_ERROR(trim());
  take_ready();  // all slots are cold now
  begin(places);
  status done = work();
  if (done && share(places)) done = work();
  if (done && !has_all(places)) {
    done = make_error(errc::busy, "the worker has not mapped all of the sequences: try again");
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    slot &s = slots_[places[i].slot];
    made[i] = {places[i].slot, s.serial};
    if (done) continue;
    s.live = false;
    shrink(places[i].slot, 0);
    cooling_.push_back(places[i].slot);
  }
  if (done) return made;
  stats_.sequences = 0;
  return tl::unexpected(done.error());
}

result<std::vector<sequence_id>> sequence_arena::claim(std::span<const sequence_place> places,
                                                       stream_ref stream) {
  return with_host_memory("kv::sequence_arena::claim", [&]() -> result<std::vector<sequence_id>> {
    STILLMAP_RETURN_IF_ERROR(group_store::check(stream));
    return make(places, [&]() -> status {
      STILLMAP_RETURN_IF_ERROR(store_->start(stream));
      return store_->finish();
    });
  });
}

result<std::vector<sequence_id>> sequence_arena::adopt(std::span<const sequence_place> places,
                                                       device_address from) {
  return with_host_memory("kv::sequence_arena::adopt",
                          [&] { return make(places, [&] { return store_->adopt(from); }); });
}

// ---- memory ----------------------------------------------------------------------------------------

// Of the slots that were used longest ago. So many keep none that each further sequence can be a fork.
void sequence_arena::trim_spare(std::size_t groups) {
  std::size_t emptied = 0;
  for (const std::uint32_t i : warm_) {
    const bool is_one_too_many = warm_.size() - emptied > sequences_;
    if (spare_ <= groups && !is_one_too_many) break;
    slot &s = slots_[i];
    const std::size_t over = spare_ - std::min(spare_, groups);
    const auto taken = is_one_too_many
                           ? s.wanted
                           : static_cast<std::uint32_t>(std::min<std::size_t>(s.wanted, over));
    shrink(i, s.wanted - taken);
    spare_ -= taken;
    if (s.wanted != 0) break;
    cooling_.push_back(i);
    ++emptied;
  }
  warm_.erase(warm_.begin(), warm_.begin() + static_cast<std::ptrdiff_t>(emptied));
}

// A short sequence would keep the memory of a long one for its life.
void sequence_arena::trim_inherited() {
  for (const std::uint32_t i : heirs_) {
    slots_[i].heir = false;
    if (slots_[i].live) shrink(i, slots_[i].asked);
  }
  heirs_.clear();
}

result<std::size_t> sequence_arena::missing_for(std::size_t tokens) const {
  const operation_scope scope("kv::sequence_arena::missing_for");
  if (tokens > longest_) {
    return make_error(errc::invalid_argument,
                      "the sequence is longer than the longest there can be", tokens, longest_,
                      error_unit::items);
  }
  const std::size_t groups = groups_for(tokens);
  const std::size_t spare = warm_.empty() ? 0 : slots_[warm_.back()].wanted;  // add() takes it
  if (groups <= spare) return std::size_t{0};
  return missing_memory(store_->device(), *store_->pool(),
                        (groups - spare) * layout_.group_bytes());
}

result<std::size_t> sequence_arena::trim() {
  const operation_scope scope("kv::sequence_arena::trim");
  if (store_->suspended()) return suspended_error();
  trim_spare(0);
  return store_->settle();
}

// Page groups that nobody else has: what removing it leaves without a use.
std::uint32_t sequence_arena::own_groups(std::uint32_t i) const {
  std::uint32_t own = 0;
  for (std::uint32_t g = 0; g < slots_[i].wanted; ++g) {
    own += store_->mapped(group(i, g)) && !store_->shared(group(i, g)) ? 1 : 0;
  }
  return own;
}

result<std::size_t> sequence_arena::give_back(std::size_t bytes,
                                              std::span<const sequence_id> cached,
                                              std::vector<sequence_id> &removed) {
  return with_host_memory("kv::sequence_arena::give_back", [&]() -> result<std::size_t> {
    STILLMAP_RETURN_IF_ERROR(check_settled());
    for (const sequence_id s : cached) STILLMAP_RETURN_IF_ERROR(check_live(s));
    removed.reserve(removed.size() + cached.size());
    const pool_release pool(*store_->pool(), bytes);
    STILLMAP_RETURN_IF_ERROR(pool.trim());
    const std::size_t wanted = divide_up(pool.missing(), layout_.group_bytes());
    std::size_t given_up = 0;  // beside what is spare
    for (const sequence_id s : cached) {
      if (given_up + spare_ >= wanted) break;
      if (!has(s) || copied_from(s.slot)) continue;
      const std::uint32_t own = own_groups(s.slot);
      const std::size_t spare = spare_;
      static_cast<void>(remove(s));
      removed.push_back(s);
      if (spare_ == spare) given_up += own;
    }
    if (wanted != 0) {
      trim_spare(spare_ - std::min(spare_, wanted - std::min(wanted, given_up)));
      STILLMAP_RETURN_IF_ERROR(store_->settle());
    }
    STILLMAP_RETURN_IF_ERROR(pool.trim());
    return pool.released();
  });
}

sequence_arena_stats sequence_arena::stats() const {
  sequence_arena_stats now = stats_;
  now.mapped_bytes = store_->mapped_groups() * layout_.group_bytes();
  now.memory_bytes = store_->distinct_groups() * layout_.group_bytes();
  now.spare_bytes = spare_ * layout_.group_bytes();
  return now;
}

}  // namespace stillmap::kv
