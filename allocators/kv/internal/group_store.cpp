#include "stillmap/allocators/kv/internal/group_store.h"

#include <algorithm>
#include <span>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

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

}  // namespace

tl::unexpected<error> suspended_error() noexcept {
  return make_error(
      errc::busy,
      "the arena's memory is suspended: resume its tag; or destroy the arena, if the tag was "
      "forgotten");
}

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
      states_(o.groups) {
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
  switch (state_of(g)) {
    case state::none:
      set_locked(g, state::queued);
      return touch_locked(g);
    case state::leaving:
      ++mapped_;
      set_locked(g, state::mapped);
      return;
    case state::leaving_shared:
      set_locked(g, state::leaving_wanted);
      return;
    case state::mapping_unwanted:
      set_locked(g, state::mapping);
      return;
    case state::unmapping:
      set_locked(g, state::unmapping_wanted);
      return;
    default:
      return;
  }
}

void group_store::want_shared(group_index g, group_index from) {
  const lock_guard lock(mutex_);
  if (state_of(g) != state::none) return;
  sources_[g] = from;
  join_locked(g, from);
  set_locked(g, state::queued);
  touch_locked(g);
}

void group_store::give_up(group_index g) {
  const lock_guard lock(mutex_);
  const bool was_shared = shared_locked(g);
  switch (state_of(g)) {
    case state::queued:
      set_locked(g, state::none);
      if (!sources_.empty()) sources_[g] = no_group;
      break;
    case state::leaving_wanted:
      set_locked(g, state::leaving_shared);
      break;
    case state::mapping:
      set_locked(g, state::mapping_unwanted);
      break;
    case state::unmapping_wanted:
      set_locked(g, state::unmapping);
      break;
    case state::mapped:
      --mapped_;
      set_locked(g, was_shared ? state::leaving_shared : state::leaving);
      touch_locked(g);
      break;
    default:
      return;
  }
  if (was_shared) leave_locked(g);
}

bool group_store::mapped(group_index g) const {
  return state_of(g) == state::mapped;
}

bool group_store::waiting(group_index g) const {
  const state now = state_of(g);
  return now == state::queued || now == state::mapping || now == state::unmapping_wanted ||
         now == state::leaving_wanted;
}

bool group_store::shared(group_index g) const {
  const lock_guard lock(mutex_);
  return shared_locked(g);
}

bool group_store::resting(group_index g) const {
  return state_of(g) == state::none;
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
    if (state_of(g) != state::mapped || (!seen.empty() && seen[g])) continue;
    ++n;
    if (seen.empty()) continue;
    for (group_index other = next_[g]; other != g; other = next_[other]) seen[other] = true;
  }
  return n;
}

// ---- the worker ------------------------------------------------------------------------------------

status group_store::check(stream_ref stream) {
  if (stream != stream_ref::per_thread()) return {};
  return make_error(errc::invalid_argument,
                    "the thread's default stream is another one in the worker: create a stream");
}

status group_store::start(stream_ref stream) {
  const lock_guard lock(mutex_);
  round like;
  like.stream = stream;
  like.operation = operation_scope::current();
  return queue_round_locked(true, std::move(like));
}

status group_store::finish() {
  if (settled()) return {};
  unique_lock lock(mutex_);
  idle_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) { return !working_; });
  settled_.store(true, std::memory_order_release);
  return std::exchange(failure_, status{});
}

bool group_store::idle() const {
  const lock_guard lock(mutex_);
  return !working_;
}

result<std::size_t> group_store::settle() {
  if (suspended()) return suspended_error();
  {
    unique_lock lock(mutex_);
    idle_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) { return !working_; });
  }
  STILLMAP_RETURN_IF_ERROR(wait_for_device());
  const std::size_t created = pool_->stats().created.bytes();
  {
    const lock_guard lock(mutex_);
    round like;
    like.operation = operation_scope::current();
    like.device_is_idle = true;
    STILLMAP_RETURN_IF_ERROR(queue_round_locked(true, std::move(like)));
    if (!working_) {  // it had nothing to do, but to trim the pool
      working_ = true;
      settled_.store(false, std::memory_order_release);
    }
  }
  work();
  STILLMAP_RETURN_IF_ERROR(device_.space().collect_range(block_->range()));
  const lock_guard lock(mutex_);
  const bool is_for_finish = !failure_ && failure_.error().is(errc::out_of_memory);
  settled_.store(!is_for_finish, std::memory_order_release);
  if (!failure_ && !is_for_finish) {
    return tl::unexpected(std::exchange(failure_, status{}).error());
  }
  return created - std::min<std::size_t>(created, pool_->stats().created.bytes());
}

status group_store::adopt(device_address from) {
  if (suspended()) return suspended_error();
  {
    const lock_guard lock(mutex_);
    round like;
    like.operation = operation_scope::current();
    like.device_is_idle = true;
    like.adopted_from = from;
    STILLMAP_RETURN_IF_ERROR(queue_round_locked(false, std::move(like)));
    if (!working_) return {};
  }
  work();
  return finish();
}

// Takes the wishes of now, and of what is given up if `with_unmaps`, all or none; and starts the worker, if it is idle
// and not on this thread.
status group_store::queue_round_locked(bool with_unmaps, round like) {
  if (first_ >= end_) return {};
  return with_host_memory([&]() STILLMAP_REQUIRES(mutex_) -> status {
    std::size_t own = 0, shared = 0, leaving = 0;
    const auto each = [&](const auto &on_wish, const auto &on_leaving) STILLMAP_REQUIRES(mutex_) {
      for (std::size_t i = first_; i < end_; ++i) {
        const auto g = static_cast<group_index>(i);
        const state now = state_of(g);
        if (now == state::queued) {
          on_wish(g, !sources_.empty() && sources_[g] != no_group);
        } else if (with_unmaps && (now == state::leaving || now == state::leaving_shared ||
                                   now == state::leaving_wanted)) {
          on_leaving(g);
        }
      }
    };
    each([&](group_index, bool share) { ++(share ? shared : own); },
         [&](group_index) { ++leaving; });
    if (own + shared + leaving == 0) return {};
    rounds_.push_back(std::move(like));
    round &r = rounds_.back();
    try {
      r.maps.reserve(own);
      r.shares.reserve(shared);
      r.sources.reserve(shared);
      r.unmaps.reserve(leaving);
      r.before.reserve(leaving);
    } catch (const std::bad_alloc &) {
      rounds_.pop_back();
      throw;
    }
    if (!working_ && !r.device_is_idle) {
      if (status s = pool_->in_background(this, [this] { work(); }); !s) {
        rounds_.pop_back();
        return s;
      }
    }
    working_ = true;
    settled_.store(false, std::memory_order_release);
    operation_ = r.operation;
    each(
        [&](group_index g, bool share) STILLMAP_REQUIRES(mutex_) {
          set_locked(g, state::mapping);
          if (!share) return r.maps.push_back(g);
          r.shares.push_back(g);
          r.sources.push_back(sources_[g]);
        },
        [&](group_index g) STILLMAP_REQUIRES(mutex_) {
          r.unmaps.push_back(g);
          const state now = state_of(g);
          r.before.push_back(now);
          set_locked(g, now == state::leaving_wanted ? state::unmapping_wanted : state::unmapping);
        });
    if (with_unmaps) {
      first_ = SIZE_MAX;
      end_ = 0;
    }
    return {};
  });
}

// The next round for the worker. Wishes for what it has unmapped meanwhile make one of their own.
bool group_store::next_round_locked(round &r) {
  if (rounds_.empty() && std::exchange(follow_up_, false)) {
    round like;
    like.operation = operation_;
    if (const status s = queue_round_locked(false, std::move(like)); !s) fail_locked(s.error());
  }
  if (rounds_.empty()) return false;
  r = std::move(rounds_.front());
  rounds_.pop_front();
  return true;
}

void group_store::work() noexcept {
  for (;;) {
    perform_rounds();
    // Its last driver call is made before anybody hears that it is done.
    const lock_guard lock(mutex_);
    if (!rounds_.empty() || follow_up_) continue;
    working_ = false;
    return idle_.notify_all();
  }
}

void group_store::perform_rounds() {
  // A capture of any thread forbids these calls by default, and none is part of a graph.
  const relaxed_capture_mode relaxed(device_.driver());
  report_if_failed(relaxed.entered());
  for (;;) {
    round r;
    {
      const lock_guard lock(mutex_);
      if (!next_round_locked(r)) break;
    }
    perform(r);
    const lock_guard lock(mutex_);
    publish_locked(r);
  }
  // Pages that one round gives back are often what the next one maps: only what none needs is released.
  if (!trims_pool_ || suspended()) return;
  if (const auto trimmed = pool_->trim(); !trimmed) report_background_error(trimmed.error());
}

// Pages are shared before their source may lose them, and unmapped before others need them.
void group_store::perform(round &r) {
  const operation_scope scope(r.operation);
  const auto keep = [&](const status &s) {
    if (s) return true;
    const lock_guard lock(mutex_);
    fail_locked(s.error());
    return false;
  };
  if (suspended()) {
    keep(suspended_error());
    return;
  }
  r.is_shared = r.shares.empty() || keep(with_host_memory([&] { return share(r); }));
  if (!r.unmaps.empty()) {
    const status unmapped = unmap(r);
    // While the stream captures a graph, what was given up stays for a later round.
    const bool is_capturing = !unmapped && unmapped.error().is(errc::not_supported);
    r.is_unmapped = !is_capturing && keep(unmapped);
  }
  if (!r.maps.empty()) keep(with_host_memory([&] { return map(r); }));
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

status group_store::unmap(const round &r) const {
  fence idle;
  if (!r.device_is_idle) {
    STILLMAP_ASSIGN_OR_RETURN(idle, fence::after(device_, r.stream));
  }
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
  if (r.adopted_from) {
    status adopted = map_adopted(r);
    r.mapped = adopted ? r.maps.size() : 0;
    return adopted;
  }
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
  for (const page_ptr &p : pages) keep_pool(p);
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  auto page = pages.begin();
  for (std::uint32_t range = 0; range < layout_.ranges(); ++range) {
    for (std::size_t i = 0; i < n; ++i) plan.map(address(range, r.maps[i]), std::move(*page++));
  }
  return device_.space().apply(std::move(plan));
}

// The pages have both addresses then.
status group_store::map_adopted(const round &r) {
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  const std::size_t page = layout_.page_bytes();
  for (std::uint32_t range = 0; range < layout_.ranges(); ++range) {
    for_each_run(r.maps, [&](group_index first, std::size_t n) {
      const virtual_range source{*r.adopted_from + (range * groups_ + first) * page, n * page};
      for (const mapping_record &m : device_.space().mappings(source)) {
        if (m.backing) keep_pool(m.backing);
      }
      plan.alias(address(range, first), source);
    });
  }
  return device_.space().apply(std::move(plan));
}

void group_store::keep_pool(const page_ptr &p) {
  if (p.pool() == pool_ || std::find(guests_.begin(), guests_.end(), p.pool()) != guests_.end()) {
    return;
  }
  guests_.push_back(p.pool());
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
  for (std::size_t i = 0; i < r.unmaps.size(); ++i) {
    const group_index g = r.unmaps[i];
    const bool wanted = state_of(g) == state::unmapping_wanted;
    if (r.is_unmapped) {
      set_locked(g, wanted ? state::queued : state::none);
      follow_up_ = follow_up_ || wanted;
    } else if (r.before[i] == state::leaving) {
      set_locked(g, wanted ? state::mapped : state::leaving);
      mapped_ += wanted ? 1 : 0;
    } else {  // its pages may be another's
      set_locked(g, wanted ? state::leaving_wanted : state::leaving_shared);
    }
    if (state_of(g) != state::none && state_of(g) != state::mapped) touch_locked(g);
  }
  for (std::size_t i = 0; i < r.maps.size(); ++i) {
    publish_wish_locked(r.maps[i], i < r.mapped, state::leaving);
  }
}

void group_store::publish_wish_locked(group_index g, bool is_done, state when_unwanted) {
  const bool wanted = state_of(g) == state::mapping;
  if (is_done) {
    set_locked(g, wanted ? state::mapped : when_unwanted);
    if (wanted) {
      ++mapped_;
    } else {
      touch_locked(g);
    }
  } else {
    set_locked(g, state::none);
  }
}

}  // namespace stillmap::kv
