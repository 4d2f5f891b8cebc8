// stillmap trace compare: one recorded program on all allocators, in memory that is enough for
// Stillmap's and not for a classic one; draws both heaps at the moment the classic one runs out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "bench/replay/replay.h"
#include "bench/replay/simulator.h"
#include "bench/replay/timeline.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/trace/card.h"
#include "tools/stillmap/trace/heap_comparison.h"
#include "tools/stillmap/trace/minima.h"
#include "tools/stillmap/trace/recording.h"
#include "tools/stillmap/trace/trace_commands.h"

namespace stillmap::tool {

using namespace replay;
namespace {

class trace_comparison {
 public:
  explicit trace_comparison(const trace_compare_options &o) : o_(o) {}

  outcome<exit_status> run() {
    STILLMAP_ASSIGN_OR_RETURN(ours_.kind, find_target(o_.ours));
    STILLMAP_ASSIGN_OR_RETURN(other_.kind, find_target(o_.other));
    STILLMAP_ASSIGN_OR_RETURN(
        recorded_, load_recording(o_.file, o_.device < 0 ? std::nullopt
                                                         : std::optional<std::size_t>(o_.device)));
    // Of a snapshot, --device is the device whose history it is.
    if (!recorded_.device && o_.device > 0) ordinal_ = o_.device;
    STILLMAP_ASSIGN_OR_RETURN(driver_, choose_driver(o_.driver.driver));
    json_.begin_object().field("trace", name_of_file()).field("device", recorded_.device);
    STILLMAP_ASSIGN_OR_RETURN(const exit_status status, compare());
    json_.field("ok", status == exit_ok).end();
    if (o_.json) fmt::print("{}", json_.text());
    return status;
  }

 private:
  template <class... Values>
  void say(fmt::format_string<Values...> line, Values &&...values) const {
    if (o_.json) return;
    fmt::print("{}\n", fmt::format(line, std::forward<Values>(values)...));
    std::fflush(stdout);
  }
  std::string name_of_file() const { return std::filesystem::path(o_.file).filename().string(); }

  outcome<exit_status> compare() {
    auto done = play(o_.shrink, check_depth::pages);
    if (!done || *done != exit_ok || compared_ == 0 || o_.every_byte_shrink == 0) return done;
    const std::uint64_t compared = compared_;
    say("\nThe same at 1/{} of its size, every byte of every block written and read:",
        shrink_ * o_.every_byte_shrink);
    done = play(shrink_ * o_.every_byte_shrink, check_depth::bytes);
    if (!done || *done != exit_ok) return done;
    json_.field("bytes_compared", compared + compared_);
    say("stillmap: ok: where '{}' ran out of memory '{}' did not, {} bytes compared, 0 wrong",
        o_.other, o_.ours, compared + compared_);
    return exit_ok;
  }

  // Opens the device with contents, or without (to search for capacities). One at a time.
  outcome<device> open(bool keep_bytes) {
    STILLMAP_RETURN_IF_ERROR(become_machine(*driver_, o_.profile, keep_bytes));
    return open_device(*driver_, ordinal_);
  }

  // A replay plan that fits into the free device memory, and so does what the recorded program had.
  outcome<replay_plan> plan_for(std::uint64_t free, unsigned shrink) {
    if (shrink != 0) return plan_replay(recorded_.requests, std::nullopt, shrink_ = shrink);
    const std::uint64_t had = recorded_.failure ? recorded_.failure->capacity() : 0;
    for (shrink_ = 1;; shrink_ *= 2) {
      auto plan = plan_replay(recorded_.requests, std::nullopt, shrink_);
      if (!plan || std::max(plan->peak_live_bytes / 4 * 5, had / shrink_) <= free) return plan;
    }
  }

  void print_minima(const replay_plan &plan, const minima &least) const {
    const auto line = [&](const std::string &name, std::uint64_t bytes) {
      say("            {:<10}{:>10}   {:.4f} times the live bytes", name, format_bytes(bytes),
          ratio(bytes, plan.peak_live_bytes));
    };
    if (least.other) {
      line(o_.other, *least.other);
    } else {
      say("            {:<10}more than all of this device's", o_.other);
    }
    line(o_.ours, least.ours);
  }

  // The memory to compare in: what was asked for, what the recorded program had, or what shows a
  // difference.
  outcome<std::uint64_t> choose_capacity(const device &d, const replay_plan &plan,
                                         std::uint64_t free) {
    const std::uint64_t recorded = recorded_.failure ? recorded_.failure->capacity() / shrink_ : 0;
    if (o_.capacity == 0 || recorded_.failure) {
      STILLMAP_ASSIGN_OR_RETURN(least_, find_minima(d, plan, ours_.kind, other_.kind));
    }
    if (o_.capacity != 0 || recorded != 0) {
      const std::uint64_t capacity = o_.capacity != 0 ? o_.capacity : recorded;
      say("memory    {}{}{}", format_bytes(capacity),
          o_.capacity != 0 ? "" : fmt::format(": what {} had", recorded_.failure->program),
          least_ ? "; the minima of the two:" : "");
      if (least_) print_minima(plan, *least_);
      return capacity;
    }
    const std::uint64_t capacity = least_->between(d.capabilities().page_bytes, free);
    say("memory    {}, {}:", format_bytes(capacity),
        least_->apart()
            ? "halfway between the minima of the two"
            : fmt::format("the minimum of '{}'; '{}' needs no more", o_.ours, o_.other));
    print_minima(plan, *least_);
    return capacity;
  }

  outcome<exit_status> play(unsigned shrink, check_depth depth) {
    std::optional<replay_plan> plan;
    std::optional<std::uint64_t> capacity;
    {
      STILLMAP_ASSIGN_OR_RETURN(auto d, open(false));
      STILLMAP_ASSIGN_OR_RETURN(const auto memory, free_of(d));
      STILLMAP_ASSIGN_OR_RETURN(plan, plan_for(memory, shrink));
      fallen_back_ = !d.capabilities().vmm;
      if (depth == check_depth::pages) {
        describe_recording(d, *plan);
        if (!fallen_back_) {
          STILLMAP_ASSIGN_OR_RETURN(capacity, choose_capacity(d, *plan, memory));
          STILLMAP_RETURN_IF_ERROR(print_table(d, *plan, *capacity));
        }
      } else if (!fallen_back_) {
        STILLMAP_ASSIGN_OR_RETURN(const minima least,
                                  find_minima(d, *plan, ours_.kind, other_.kind));
        if (least.apart()) {
          capacity = least.between(d.capabilities().page_bytes, memory);
          say("memory    {}, halfway between the minima of the two:", format_bytes(*capacity));
          print_minima(*plan, least);
        }
      }
    }
    STILLMAP_ASSIGN_OR_RETURN(auto d, open(true));
    if (!keeps_content(*driver_)) {
      return fail(exit_usage, "this hostcuda is unbacked: the content of blocks cannot be checked");
    }
    if (fallen_back_) return without_vmm(d, *plan);
    return capacity ? contest(d, *plan, *capacity, depth) : every_byte(d, *plan);
  }

  void describe_recording(const device &d, const replay_plan &plan) {
    say("driver    {}", describe(*driver_, d));
    say("trace     {}{}{}: {} requests, peak of live bytes {}", name_of_file(),
        recorded_.chosen.empty() ? "" : ", " + recorded_.chosen,
        shrink_ == 1 ? "" : fmt::format(" at 1/{} of its size", shrink_),
        format_count(plan.requests), format_bytes(plan.peak_live_bytes));
    json_.field("shrink", shrink_)
        .field("requests", plan.requests)
        .field("peak_live_bytes", plan.peak_live_bytes);
    if (!recorded_.failure) return;
    say("recorded  {}", text_of(*recorded_.failure));
    if (recorded_.failure->was_limited()) {
      say("          The device had enough: it reached a limit of its own, such as "
          "set_per_process_memory_fraction");
    }
    write(json_, *recorded_.failure);
  }

  // Replays on every allocator without contents, and prints a row for each and a verdict.
  outcome<void> print_table(const device &d, const replay_plan &plan, std::uint64_t capacity) {
    say("\n{:<20}{:>13}  {:>13}  {:>13}  {:>9}", "allocator", "memory held", "driver time",
        "last iteration", "a request");
    std::vector<std::string_view> enough, short_of;
    json_.field("capacity_bytes", capacity).begin_array("allocators");
    for (const target_kind &kind : target_kinds()) {
      // An allocator in a library of its own is compared where one is named.
      if (kind.own_calls && ::secure_getenv(torch_peer_variable) == nullptr) continue;
      replay_options o;
      o.kind = &kind;
      o.capacity = capacity;
      const auto ran = replay::run(d, plan, o);
      if (!ran && ran.error().is(errc::not_supported)) {
        say("{:<20}not available: {}", kind.name, ran.error().detail().cause);
        continue;
      }
      if (!ran) return fail(ran.error());
      const replay_result &r = *ran;
      (r.oom ? short_of : enough).push_back(kind.name);
      write_row(kind.name, r);
      if (r.oom) out_of_memory_.insert(&kind);
      if (r.oom) {
        say("{:<20}OUT OF MEMORY at {}", kind.name, r.where_oom);
        continue;
      }
      const auto time = [](std::optional<double> us) {
        return us ? human_seconds(*us / 1e6) : std::string("-");
      };
      say("{:<20}{:>13}  {:>13}  {:>13}  {:>6.0f} ns", kind.name,
          format_bytes(r.peak_committed_bytes), time(r.modelled_us), time(r.modelled_last_us),
          r.ns_per_op);
    }
    json_.end();
    say("          segments: PyTorch's default; segments-expanding: its expandable_segments");
    std::optional<std::uint64_t> need_of_other;
    if (least_) {
      STILLMAP_ASSIGN_OR_RETURN(need_of_other, need_of_the_other(d, plan, capacity));
    }
    figures_ = {capacity, least_ ? least_->ours : capacity, need_of_other.value_or(capacity)};
    say("verdict   {} {}{}", figure(capacity),
        enough.empty() ? "is enough for none of them"
                       : fmt::format("is enough for {}", fmt::join(enough, ", ")),
        short_of.empty() || enough.empty()
            ? ""
            : fmt::format("; not for {}", fmt::join(short_of, ", ")));
    if (least_) print_verdict(need_of_other);
    return o_.timeline.empty() ? outcome<void>() : draw_timeline(d, plan, capacity);
  }

  void write_row(const char *name, const replay_result &r) {
    json_.begin_object().field("name", name).field("out_of_memory", r.oom);
    if (r.oom) {
      json_.field("where", r.where_oom);
    } else {
      json_.field("peak_committed_bytes", r.peak_committed_bytes)
          .field("modelled_driver_us", r.modelled_us)
          .field("modelled_driver_us_last_iteration", r.modelled_last_us)
          .field("ns_per_op", r.ns_per_op);
    }
    json_.end();
  }

  // What is enough for the other, and not by luck: where it ran out, more than that.
  outcome<std::optional<std::uint64_t>> need_of_the_other(const device &d, const replay_plan &plan,
                                                          std::uint64_t capacity) const {
    if (!least_->other || out_of_memory_.count(other_.kind) == 0) return least_->other;
    return find_least(d, plan, other_.kind, capacity);
  }

  // To the byte where another figure of the verdict reads the same and is not.
  std::string figure(std::uint64_t bytes) const {
    const std::string text = format_bytes(bytes);
    const bool is_ambiguous = std::any_of(
        figures_.begin(), figures_.end(),
        [&](std::uint64_t other) { return other != bytes && format_bytes(other) == text; });
    return is_ambiguous ? human_and_exact(bytes) : text;
  }

  // Would it have served what failed, and on which card?
  void print_verdict(std::optional<std::uint64_t> need_of_other) {
    json_.begin_object("verdict");
    if (recorded_.failure) {
      const bool served = out_of_memory_.count(ours_.kind) == 0;
      const char *const requests =
          recorded_.failure->count == 1 ? "request that failed" : "requests that failed";
      say("          '{}' would {}have served the {}", o_.ours, served ? "" : "not ", requests);
      json_.field("would_have_served", served);
      say("          PyTorch with expandable_segments would {}have served {} ('{}')",
          ran_out(expanding) ? "not " : "", recorded_.failure->count == 1 ? "it" : "them",
          expanding);
    }
    json_.begin_array("needs");
    print_need(o_.ours, least_->ours);
    if (need_of_other && o_.ours != o_.other) {
      print_need(o_.other, *need_of_other);
      if (*need_of_other != *least_->other) {
        say("          '{}' finished in {} too, by chance: in some sizes between them it does not",
            o_.other, figure(*least_->other));
      }
    }
    json_.end().end();
  }

  static constexpr const char *expanding = "segments-expanding";
  bool ran_out(std::string_view name) const {
    return std::any_of(out_of_memory_.begin(), out_of_memory_.end(),
                       [&](const target_kind *kind) { return kind->name == name; });
  }

  void print_need(const std::string &name, std::uint64_t least) {
    const std::uint64_t bytes = least * shrink_;
    const card c = smallest_card(bytes);
    say("          '{}' needs {}: {} has that, and {} for a CUDA context", name,
        shrink_ == 1 ? figure(bytes) : format_bytes(bytes), text_of(c),
        format_bytes(context_bytes));
    json_.begin_object().field("name", name).field("bytes", bytes);
    write(json_, "smallest_card", c);
    json_.end();
  }

  outcome<void> draw_timeline(const device &d, const replay_plan &plan, std::uint64_t capacity) {
    timeline_options o;
    o.capacity = capacity;
    for (const target_kind &kind : target_kinds()) {
      // `direct` holds what is live, which the picture has.
      const bool there = !kind.own_calls || ::secure_getenv(torch_peer_variable) != nullptr;
      if (there && kind.make != make_direct) o.kinds.push_back(&kind);
    }
    STILLMAP_ASSIGN_OR_RETURN(
        const timeline_picture p,
        timeline_of(d, plan, o, std::filesystem::path(o_.file).filename().string()));
    STILLMAP_RETURN_IF_ERROR(write_timeline(p, o_.timeline));
    json_.field("timeline", o_.timeline);
    say("timeline  {}", o_.timeline);
    return {};
  }

  // Without a limit that one of the two runs out of: where there is no capacity that tells them apart.
  outcome<exit_status> alone(const device &d, const replay_plan &plan, check_depth depth) {
    ours_.capacity.reset();
    ours_.map = false;
    ours_.verify = depth;
    STILLMAP_ASSIGN_OR_RETURN(const auto done, replay::run(d, plan, ours_));
    if (done.oom || done.violations != 0) {
      say("stillmap: FAILED: '{}' did not finish: {}", o_.ours,
          done.oom ? "out of memory at " + done.where_oom
                   : "device work accessed memory after it was taken away");
      return exit_failed;
    }
    compared_ = done.bytes_checked;
    say("{:<10}served all {} requests in {}, {:.4f} times the live bytes", o_.ours,
        format_count(plan.requests), format_bytes(done.peak_committed_bytes),
        ratio(done.peak_committed_bytes, plan.peak_live_bytes));
    return exit_ok;
  }

  // Without virtual memory management no allocator can move pages. Shows that ours works there too.
  outcome<exit_status> without_vmm(const device &d, const replay_plan &plan) {
    say("This device has no virtual memory management, so pages cannot be moved and there is\n"
        "nothing to compare. The same program in all of the device's memory instead:");
    auto done = alone(d, plan, check_depth::pages);
    if (!done || *done != exit_ok) return done;
    json_.field("bytes_compared", compared_);
    say("stillmap: ok: every block kept its content ({} bytes compared); without virtual memory "
        "management there is nothing to compare",
        std::exchange(compared_, 0));
    return exit_ok;
  }

  // Pages do not shrink with the blocks, so that at a fraction of its size a program may need as much of
  // each allocator.
  outcome<exit_status> every_byte(const device &d, const replay_plan &plan) {
    auto done = alone(d, plan, check_depth::bytes);
    if (!done || *done != exit_ok) return done;
    say("            '{}' needs no more at this size; every byte of every block checked, {} "
        "compared, "
        "0 wrong",
        o_.other, format_bytes(compared_));
    return exit_ok;
  }

  static outcome<std::uint64_t> free_of(const device &d) {
    const context_guard guard(d.driver(), d.context());
    if (!guard.entered()) return fail(guard.entered().error());
    STILLMAP_ASSIGN_OR_RETURN(const auto memory, d.driver().memory_info_now());
    return memory.free.bytes();
  }

  outcome<exit_status> contest(const device &d, const replay_plan &plan, std::uint64_t capacity,
                               check_depth depth) {
    const bool draws = depth == check_depth::pages;
    other_.capacity = ours_.capacity = capacity;
    other_.map = ours_.map = true;
    STILLMAP_ASSIGN_OR_RETURN(const auto loser, replay::run(d, plan, other_));
    if (draws) json_.field("against_out_of_memory", loser.oom);
    if (!loser.oom) {
      say("stillmap: ok: {} is enough for '{}' too: there are no two heaps to draw",
          format_bytes(capacity), o_.other);
      return exit_ok;
    }
    if (!loser.moment) {
      return fail(exit_usage, fmt::format("'{}' cannot report a map of its memory", o_.other));
    }
    const heap_sums lost = sums_of(loser.moment->heap.map);
    say("{:<10}OUT OF MEMORY at {}", o_.other, loser.where_oom);
    if (draws) {
      say("            {} requested; {} not allocated, {} free in {} pieces, the largest {}",
          format_bytes(loser.moment->wanted), format_bytes(capacity - lost.live - lost.free),
          format_bytes(lost.free), format_count(lost.pieces), format_bytes(lost.largest));
    }
    ours_.verify = depth;
    ours_.look_after = loser.moment->op;
    STILLMAP_ASSIGN_OR_RETURN(const auto winner, replay::run(d, plan, ours_));
    if (winner.oom || winner.violations != 0) {
      say("{:<10}{}", o_.ours,
          winner.oom ? "OUT OF MEMORY at " + winner.where_oom
                     : "device work accessed memory after it was taken away");
      say("stillmap: FAILED: '{}' did not finish", o_.ours);
      return exit_failed;
    }
    compared_ = winner.bytes_checked;
    if (draws) json_.field("moved_bytes", winner.moved_bytes);
    say("{:<10}served all {} requests; {} of free pages moved to where they were needed", o_.ours,
        format_count(plan.requests), format_bytes(winner.moved_bytes));
    say("            {}; {} compared, 0 wrong",
        draws ? "both ends of every block and both sides of each page edge in it checked"
              : "every byte of every block checked",
        format_bytes(winner.bytes_checked));
    if (!draws) return exit_ok;
    if (!winner.moment) {
      return fail(exit_usage, fmt::format("'{}' cannot report a map of its memory", o_.ours));
    }
    return picture(*loser.moment, *winner.moment, capacity);
  }

  outcome<exit_status> picture(const replay_moment &loser, const replay_moment &winner,
                               std::uint64_t capacity) {
    const auto side = [&](const std::string &title, const heap_map &map) {
      const heap_sums s = sums_of(map);
      return heap_side{title,
                       fmt::format("{} live, {} in {} pieces", format_bytes(s.live),
                                   format_bytes(s.free), format_count(s.pieces)),
                       map, capacity};
    };
    const heap_side left = side(o_.other + ": out of memory", loser.heap.map);
    const heap_side right = side(o_.ours + ": served", winner.heap.map);
    say("\nThe {} of memory when {} more are requested:", format_bytes(capacity),
        format_bytes(loser.wanted));
    if (!o_.json) fmt::print("\n{}", draw_side_by_side(left, right, terminal_of(stdout)));
    if (o_.svg.empty()) return exit_ok;
    const named_moment both[] = {{o_.other, capacity, false, loser},
                                 {o_.ours, capacity, true, winner}};
    const std::string of = fmt::format(
        "{} in {}", std::filesystem::path(o_.file).filename().string(), format_bytes(capacity));
    STILLMAP_RETURN_IF_ERROR(write_map(both, of, o_.svg));
    json_.field("picture", o_.svg);
    say("picture   {}", o_.svg);
    return exit_ok;
  }

  const trace_compare_options &o_;
  replay_options ours_, other_;
  recording recorded_;
  std::optional<minima> least_;                  // at the size of the table
  std::set<const target_kind *> out_of_memory_;  // in the table
  std::vector<std::uint64_t> figures_;           // of the verdict
  json_writer json_;
  driver *driver_ = nullptr;
  int ordinal_ = 0;
  unsigned shrink_ = 1;
  std::uint64_t compared_ = 0;
  bool fallen_back_ = false;
};

}  // namespace

outcome<exit_status> run_trace_compare(const trace_compare_options &o) {
  return trace_comparison(o).run();
}

}  // namespace stillmap::tool
