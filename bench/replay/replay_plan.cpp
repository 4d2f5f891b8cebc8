#include "bench/replay/replay_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bench/replay/internal/failure.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

constexpr std::uint32_t nowhere = UINT32_MAX;

struct block_facts {
  std::uint64_t bytes = 0;
  std::uint32_t stream = 0;
  auto operator<=>(const block_facts &) const = default;
};

class planner {
 public:
  planner(const trace &t, std::uint64_t shrink)
      : trace_(t), shrink_(shrink), facts_(t.totals.blocks), slot_(t.totals.blocks, nowhere) {
    for (const trace_event &e : t.events) {
      if (e.verb == trace_verb::allocate) facts_[e.block] = {divide_up(e.bytes, shrink), e.stream};
    }
    out_.streams = std::max(t.totals.streams, 1u);
  }

  void play(std::span<const trace_event> events) {
    for (const trace_event &e : events) {
      if (e.verb == trace_verb::iteration) {
        end_iteration();
      } else {
        play(e);
      }
    }
  }

  void end_iteration() {
    out_.ops.push_back({});
    ++out_.iterations;
  }

  void free_all() {
    for (std::uint64_t block = 0; block < slot_.size(); ++block) {
      if (slot_[block] != nowhere) play({trace_verb::free, 0, 0, block, 0});
    }
  }

  // From now on the numbers in `from` mean the blocks that have the numbers in `to`: equal blocks.
  void rename(const std::vector<std::uint64_t> &to, const std::vector<std::uint64_t> &from) {
    std::vector<std::uint32_t> slots(to.size());
    for (std::size_t i = 0; i < to.size(); ++i) slots[i] = std::exchange(slot_[to[i]], nowhere);
    for (std::size_t i = 0; i < from.size(); ++i) slot_[from[i]] = slots[i];
  }

  // The live blocks after the first `count` events of the trace, equal blocks side by side.
  std::vector<std::uint64_t> live_after(std::size_t count) const {
    std::vector<bool> live(facts_.size());
    for (const trace_event &e : std::span(trace_.events).first(count)) {
      if (e.verb == trace_verb::allocate) live[e.block] = true;
      if (e.verb == trace_verb::free) live[e.block] = false;
    }
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t block = 0; block < live.size(); ++block) {
      if (live[block]) blocks.push_back(block);
    }
    std::stable_sort(blocks.begin(), blocks.end(),
                     [&](std::uint64_t a, std::uint64_t b) { return facts_[a] < facts_[b]; });
    return blocks;
  }

  bool alike(const std::vector<std::uint64_t> &a, const std::vector<std::uint64_t> &b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [&](std::uint64_t x, std::uint64_t y) { return facts_[x] == facts_[y]; });
  }

  replay_plan finish() {
    out_.slots = next_slot_;
    return std::move(out_);
  }

 private:
  void play(const trace_event &e) {
    planned_op op;
    op.verb = e.verb;
    op.stream = e.stream;
    if (e.verb == trace_verb::wait) {
      op.slot = e.waits;
      out_.ops.push_back(op);
      return;
    }
    if (e.verb == trace_verb::fail) return play_failed(e);
    ++out_.requests;
    if (e.verb == trace_verb::allocate) {
      slot_[e.block] = take_slot();
      op.bytes = facts_[e.block].bytes;
      live_bytes_ += op.bytes;
      out_.peak_live_bytes = std::max(out_.peak_live_bytes, live_bytes_);
    }
    op.slot = slot_[e.block];
    if (e.verb == trace_verb::free) {
      op.stream = facts_[e.block].stream;
      free_slots_.push_back(op.slot);
      slot_[e.block] = nowhere;
      live_bytes_ -= facts_[e.block].bytes;
    }
    out_.ops.push_back(op);
  }

  // A request that failed when it was recorded is made again; how the program would have gone on is
  // not known, so the block is freed at once.
  void play_failed(const trace_event &e) {
    planned_op op;
    op.verb = trace_verb::allocate;
    op.stream = e.stream;
    op.slot = take_slot();
    op.bytes = divide_up(e.bytes, shrink_);
    out_.peak_live_bytes = std::max(out_.peak_live_bytes, live_bytes_ + op.bytes);
    out_.failed_ops.push_back(out_.ops.size());
    out_.ops.push_back(op);
    op.verb = trace_verb::free;
    op.bytes = 0;
    out_.ops.push_back(op);
    free_slots_.push_back(op.slot);
    out_.requests += 2;
  }

  std::uint32_t take_slot() {
    if (free_slots_.empty()) return next_slot_++;
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }

  const trace &trace_;
  std::uint64_t shrink_;
  std::vector<block_facts> facts_;
  std::vector<std::uint32_t> slot_;  // of each live block
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t next_slot_ = 0;
  std::uint64_t live_bytes_ = 0;
  replay_plan out_;
};

std::vector<std::size_t> boundaries_of(const trace &t) {
  std::vector<std::size_t> at;
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    if (t.events[i].verb == trace_verb::iteration) at.push_back(i);
  }
  return at;
}

}  // namespace

result<replay_plan> plan_replay(const trace &t, std::optional<unsigned> iterations,
                                std::uint64_t shrink) {
  planner plan(t, shrink);
  const std::span<const trace_event> events(t.events);
  const std::vector<std::size_t> at = boundaries_of(t);
  if (iterations && *iterations == 0)
    return fail(errc::invalid_argument, "--iterations 0 replays nothing");

  if (at.size() < 2) {  // no two boundaries: all of it is one iteration
    for (unsigned i = 0; i < iterations.value_or(1); ++i) {
      for (const trace_event &e : events) {
        if (e.verb != trace_verb::iteration) plan.play(std::span(&e, 1));
      }
      if (iterations) plan.free_all();
      plan.end_iteration();
    }
    return plan.finish();
  }

  const std::size_t has = at.size() - 1;
  const std::size_t first = std::min<std::size_t>(iterations.value_or(has), has);
  plan.play(events.first(at[0]));  // without the boundary: no iteration ends there
  plan.play(events.subspan(at[0] + 1, at[first] - at[0]));
  if (!iterations) {
    plan.play(events.subspan(at[has] + 1));
    return plan.finish();
  }
  if (*iterations <= has) return plan.finish();

  const std::vector<std::uint64_t> last = plan.live_after(at[has]);
  std::vector<std::uint64_t> begin;
  std::size_t from = 0;
  // The first iteration is tried last, because optimizers allocate their state in it.
  bool found = false;
  for (std::size_t i = 1; i <= has && !found; ++i) {
    from = i % has;
    begin = plan.live_after(at[from]);
    found = plan.alike(begin, last);
  }
  if (!found) {
    return fail(errc::invalid_argument,
                fmt::format("--iterations {}: the trace has {} and ends with other blocks live "
                            "than any of them begins with, so none can be repeated",
                            *iterations, has));
  }
  // Blocks that are live at both ends keep their numbers; the others take those of their equals.
  const auto only_in = [](std::vector<std::uint64_t> these, std::vector<std::uint64_t> others) {
    std::sort(others.begin(), others.end());
    std::erase_if(these, [&](std::uint64_t block) {
      return std::binary_search(others.begin(), others.end(), block);
    });
    return these;
  };
  const std::vector<std::uint64_t> only_begin = only_in(begin, last),
                                   only_last = only_in(last, begin);
  for (std::size_t done = has; done < *iterations;) {
    plan.rename(only_last, only_begin);
    const std::size_t more = std::min<std::size_t>(*iterations - done, has - from);
    plan.play(events.subspan(at[from] + 1, at[from + more] - at[from]));
    done += more;
  }
  return plan.finish();
}

}  // namespace stillmap::replay
