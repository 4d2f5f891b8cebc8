#include "stillmap/allocators/kv/internal/group_store.h"

#include <algorithm>
#include <span>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::kv {
namespace {

// Calls act(first, count) for each run of numbers that follow each other.
template <class Act>
void for_each_run(std::span<const group_index> sorted, const Act &act) {
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t n = 1;
    while (i + n < sorted.size() && sorted[i + n] == sorted[i] + n) ++n;
    act(sorted[i], n);
    i += n;
  }
}

tl::unexpected<error> suspended_error() {
  return make_error(errc::busy, "the arena's memory is suspended: resume its tag first");
}

}  // namespace

result<std::unique_ptr<group_store>> group_store::create(const stillmap::device &d, const layout &l,
                                                         options o) {
  if (o.groups >= no_group || o.groups > SIZE_MAX / l.group_bytes()) {
    return make_error(errc::invalid_argument, "the arena exceeds any address space", o.groups,
                      no_group, error_unit::items);
  }
  return with_host_memory([&]() -> result<std::unique_ptr<group_store>> {
    auto watcher = std::make_shared<suspension>();
    STILLMAP_ASSIGN_OR_RETURN(auto block,
                              d.space().reserve(o.groups * l.group_bytes(), 0, {}, o.tag, watcher));
    return std::unique_ptr<group_store>(
        new group_store(d, l, std::move(o), std::move(watcher), std::move(block)));
  });
}

group_store::group_store(const stillmap::device &d, const layout &l, options o,
                         std::shared_ptr<suspension> s, std::shared_ptr<address_block> block)
    : device_(d),
      layout_(l),
      groups_(o.groups),
      pool_(std::move(o.pool)),
      trims_pool_(o.trims_pool),
      suspension_(std::move(s)),
      block_(std::move(block)),
      states_(o.groups, state::none) {
  if (!o.sharing) return;
  next_.resize(groups_);
  for (std::size_t g = 0; g < groups_; ++g) next_[g] = static_cast<group_index>(g);
  previous_ = next_;
  sources_.assign(groups_, no_group);
}

group_store::~group_store() {
  pool_->cancel_background(this);
  report_if_failed(wait_for_device());
  report_if_failed(device_.space().unmap(block_->range()));
  report_if_failed(device_.space().collect_range(block_->range()));
}

status group_store::wait_for_device() const {
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return device_.driver().synchronize_context();
}

// ---- wishes ----------------------------------------------------------------------------------------

void group_store::touch_locked(group_index g) {
  first_ = std::min<std::size_t>(first_, g);
  end_ = std::max<std::size_t>(end_, std::size_t{g} + 1);
}

bool group_store::shared_locked(group_index g) const {
  return !next_.empty() && next_[g] != g;
}

void group_store::join_locked(group_index g, group_index other) {
  next_[g] = next_[other];
  previous_[g] = other;
  previous_[next_[g]] = g;
  next_[other] = g;
}

void group_store::leave_locked(group_index g) {
  if (!shared_locked(g)) return;
  next_[previous_[g]] = next_[g];
  previous_[next_[g]] = previous_[g];
  next_[g] = previous_[g] = g;
}

void group_store::want(group_index g) {
  const lock_guard lock(mutex_);
  switch (states_[g]) {
    case state::none:
      states_[g] = state::queued;
      return touch_locked(g);
    case state::leaving:
      ++mapped_;
      states_[g] = state::mapped;
      return;
    case state::leaving_shared:
      states_[g] = state::leaving_wanted;
      return;
    case state::mapping_unwanted:
      states_[g] = state::mapping;
      return;
    case state::unmapping:
      states_[g] = state::unmapping_wanted;
      return;
    default:
      return;
  }
}

void group_store::want_shared(group_index g, group_index from) {
  const lock_guard lock(mutex_);
  if (states_[g] != state::none) return;
  sources_[g] = from;
  join_locked(g, from);
  states_[g] = state::queued;
  touch_locked(g);
}

void group_store::give_up(group_index g) {
  const lock_guard lock(mutex_);
  const bool was_shared = shared_locked(g);
  switch (states_[g]) {
    case state::queued:
      states_[g] = state::none;
      if (!sources_.empty()) sources_[g] = no_group;
      break;
    case state::leaving_wanted:
      states_[g] = state::leaving_shared;
      break;
    case state::mapping:
      states_[g] = state::mapping_unwanted;
      break;
    case state::unmapping_wanted:
      states_[g] = state::unmapping;
      break;
    case state::mapped:
      --mapped_;
      states_[g] = was_shared ? state::leaving_shared : state::leaving;
      touch_locked(g);
      break;
    default:
      return;
  }
  if (was_shared) leave_locked(g);
}

bool group_store::mapped(group_index g) const {
  const lock_guard lock(mutex_);
  return states_[g] == state::mapped;
}

bool group_store::shared(group_index g) const {
  const lock_guard lock(mutex_);
  return shared_locked(g);
}

bool group_store::resting(group_index g) const {
  const lock_guard lock(mutex_);
  return states_[g] == state::none;
}

std::size_t group_store::mapped_groups() const {
  const lock_guard lock(mutex_);
  return mapped_;
}

std::size_t group_store::distinct_groups() const {
  const lock_guard lock(mutex_);
  std::vector<bool> seen(next_.size());
  std::size_t n = 0;
  for (std::size_t g = 0; g < groups_; ++g) {
    if (states_[g] != state::mapped || (!seen.empty() && seen[g])) continue;
    ++n;
    if (seen.empty()) continue;
    for (group_index other = next_[g]; other != g; other = next_[other]) seen[other] = true;
  }
  return n;
}

// ---- the worker ------------------------------------------------------------------------------------

status group_store::start(stream_ref stream) {
  const lock_guard lock(mutex_);
  stream_ = stream;
  if (first_ >= end_ || working_) return {};
  STILLMAP_RETURN_IF_ERROR(pool_->in_background(this, [this] { work(); }));
  operation_ = operation_scope::current();
  working_ = true;
  settled_.store(false, std::memory_order_release);
  return {};
}

status group_store::finish(std::vector<group_index> &lost) {
  if (settled()) return {};
  unique_lock lock(mutex_);
  idle_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) { return !working_; });
  settled_.store(true, std::memory_order_release);
  lost.swap(lost_);
  return std::exchange(failure_, status{});
}

bool group_store::idle() const {
  const lock_guard lock(mutex_);
  return !working_;
}

status group_store::settle() {
  if (suspended()) return suspended_error();
  {
    unique_lock lock(mutex_);
    idle_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) { return !working_; });
    operation_ = operation_scope::current();
    working_ = true;
    settled_.store(false, std::memory_order_release);
  }
  work();
  return device_.space().collect_range(block_->range());
}

// Works until there is no wish that it can fulfil.
void group_store::work() noexcept {
  for (;;) {
    round r;
    const status taken = next_round(r);
    const bool goes_on = taken && !r.empty() && perform(r);
    // Pages that one step gives back are often what the next one maps: only what it did not need is released.
    if (!goes_on && trims_pool_ && !suspended()) {
      if (const auto trimmed = pool_->trim(); !trimmed) report_background_error(trimmed.error());
    }
    const lock_guard lock(mutex_);
    if (!taken) fail_locked(taken.error());
    publish_locked(r);
    if (goes_on && first_ < end_) continue;
    working_ = false;
    return idle_.notify_all();
  }
}

// Takes all wishes, or none where the host has no memory.
status group_store::next_round(round &r) {
  return with_host_memory([&]() -> status {
    const lock_guard lock(mutex_);
    std::size_t own = 0, shared = 0, leaving = 0;
    const auto each = [&](const auto &on_wish, const auto &on_leaving) STILLMAP_REQUIRES(mutex_) {
      for (std::size_t i = first_; i < end_; ++i) {
        const auto g = static_cast<group_index>(i);
        switch (states_[g]) {
          case state::queued:
            on_wish(g, !sources_.empty() && sources_[g] != no_group);
            break;
          case state::leaving:
          case state::leaving_shared:
            on_leaving(g, state::unmapping);
            break;
          case state::leaving_wanted:
            on_leaving(g, state::unmapping_wanted);
            break;
          default:
            break;
        }
      }
    };
    each([&](group_index, bool share) { ++(share ? shared : own); },
         [&](group_index, state) { ++leaving; });
    r.maps.reserve(own);
    r.shares.reserve(shared);
    r.sources.reserve(shared);
    r.unmaps.reserve(leaving);
    lost_.reserve(lost_.size() + own + shared);
    each(
        [&](group_index g, bool share) STILLMAP_REQUIRES(mutex_) {
          states_[g] = state::mapping;
          if (!share) return r.maps.push_back(g);
          r.shares.push_back(g);
          r.sources.push_back(sources_[g]);
        },
        [&](group_index g, state then) STILLMAP_REQUIRES(mutex_) {
          states_[g] = then;
          r.unmaps.push_back(g);
        });
    first_ = SIZE_MAX;
    end_ = 0;
    return {};
  });
}

// Pages are shared before their source may lose them, and unmapped before others need them. Returns whether more
// rounds may do more.
bool group_store::perform(round &r) {
  stream_ref stream = stream_ref::legacy();
  const char *operation = "";
  {
    const lock_guard lock(mutex_);
    stream = stream_;
    operation = operation_;
  }
  const operation_scope scope(operation);
  const auto keep = [&](const status &s) {
    if (s) return true;
    const lock_guard lock(mutex_);
    fail_locked(s.error());
    return false;
  };
  if (suspended()) return keep(suspended_error());
  r.is_shared = r.shares.empty() || keep(with_host_memory([&] { return share(r); }));
  bool is_capturing = false;
  if (!r.unmaps.empty()) {
    const status unmapped = unmap(r, stream);
    is_capturing = !unmapped && unmapped.error().is(errc::not_supported);
    r.is_unmapped = is_capturing ? false : keep(unmapped);
  }
  const bool is_mapped = r.maps.empty() || keep(with_host_memory([&] { return map(r); }));
  return is_mapped && (r.unmaps.empty() || r.is_unmapped);
}

// Before pages are mapped there: what was unmapped may still wait for its fence.
status group_store::collect_retiring(const std::vector<group_index> &groups) const {
  if (device_.space().stats().retiring_mappings == 0) return {};
  for (std::uint32_t range = 0; range < layout_.ranges(); ++range) {
    for (const group_index g : groups) {
      STILLMAP_RETURN_IF_ERROR(
          device_.space().collect_range({address(range, g), layout_.page_bytes()}));
    }
  }
  return {};
}

status group_store::share(const round &r) const {
  STILLMAP_RETURN_IF_ERROR(collect_retiring(r.shares));
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  const std::size_t page = layout_.page_bytes();
  for (std::uint32_t range = 0; range < layout_.ranges(); ++range) {
    for (std::size_t i = 0; i < r.shares.size(); ++i) {
      plan.alias(address(range, r.shares[i]), {address(range, r.sources[i]), page});
    }
  }
  return device_.space().apply(std::move(plan));
}

status group_store::unmap(const round &r, stream_ref stream) const {
  STILLMAP_ASSIGN_OR_RETURN(const fence idle, fence::after(device_, stream));
  for (std::uint32_t range = 0; range < layout_.ranges(); ++range) {
    for_each_run(r.unmaps, [&](group_index first, std::size_t n) {
      device_.space().retire_again(block_, {address(range, first), n * layout_.page_bytes()}, idle);
    });
  }
  device_.space().collect();
  return {};
}

// Maps as many of the groups as there is memory for.
status group_store::map(round &r) {
  STILLMAP_RETURN_IF_ERROR(collect_retiring(r.maps));
  const status all = map_first(r, r.maps.size());
  r.mapped = all ? r.maps.size() : 0;
  const auto is_short = [](const error &e) {  // of the device's memory
    return e.is(errc::out_of_memory) && e.code != std::errc::not_enough_memory;
  };
  if (all || !is_short(all.error())) return all;
  const std::size_t some = all.error().limit / layout_.group_bytes();
  if (some != 0 && some < r.maps.size() && map_first(r, some)) r.mapped = some;
  return all;
}

// Maps the first `n` groups, all or none.
status group_store::map_first(const round &r, std::size_t n) {
  std::vector<page_ptr> pages;
  STILLMAP_RETURN_IF_ERROR(pool_->acquire(n * layout_.ranges(), pages));
  for (const page_ptr &p : pages) {
    if (p.pool() != pool_ && std::find(guests_.begin(), guests_.end(), p.pool()) == guests_.end()) {
      guests_.push_back(p.pool());
    }
  }
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  auto page = pages.begin();
  for (std::uint32_t range = 0; range < layout_.ranges(); ++range) {
    for (std::size_t i = 0; i < n; ++i) plan.map(address(range, r.maps[i]), std::move(*page++));
  }
  return device_.space().apply(std::move(plan));
}

void group_store::fail_locked(const error &e) {
  if (failure_) failure_ = tl::unexpected(e);
}

void group_store::publish_locked(const round &r) {
  for (const group_index g : r.shares) {
    publish_wish_locked(g, r.is_shared, state::leaving_shared);
    sources_[g] = no_group;
    if (!r.is_shared) leave_locked(g);
  }
  for (const group_index g : r.unmaps) {
    const bool wanted = states_[g] == state::unmapping_wanted;
    if (r.is_unmapped) {
      states_[g] = wanted ? state::queued : state::none;
    } else if (!next_.empty()) {  // its pages may be another's
      states_[g] = wanted ? state::leaving_wanted : state::leaving_shared;
    } else {
      states_[g] = wanted ? state::mapped : state::leaving;
      mapped_ += wanted ? 1 : 0;
    }
    if (states_[g] != state::none && states_[g] != state::mapped) touch_locked(g);
  }
  for (std::size_t i = 0; i < r.maps.size(); ++i) {
    publish_wish_locked(r.maps[i], i < r.mapped, state::leaving);
  }
}

void group_store::publish_wish_locked(group_index g, bool is_done, state when_unwanted) {
  const bool wanted = states_[g] == state::mapping;
  if (is_done) {
    states_[g] = wanted ? state::mapped : when_unwanted;
    if (wanted) {
      ++mapped_;
    } else {
      touch_locked(g);
    }
  } else {
    states_[g] = state::none;
    if (wanted) lost_.push_back(g);
  }
}

}  // namespace stillmap::kv
