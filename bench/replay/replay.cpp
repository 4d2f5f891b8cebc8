#include "bench/replay/replay.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/replay/internal/failure.h"
#include "bench/replay/internal/memory_samples.h"
#include "bench/replay/less_memory.h"
#include "bench/replay/simulator.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

using steady = std::chrono::steady_clock;

std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The least time between two readings of the thread's clock.
std::int64_t clock_cost() {
  std::int64_t least = INT64_MAX;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t begin = thread_cpu_ns();
    least = std::min(least, thread_cpu_ns() - begin);
  }
  return least;
}

double ns_since(steady::time_point begin) {
  return std::chrono::duration<double, std::nano>(steady::now() - begin).count();
}

// Counts driver calls and their modelled time, except between pause() and resume().
class call_meter {
 public:
  // own_calls: target_kind::own_calls.
  call_meter(const driver &drv, bool own_calls) : drv_(drv), own_calls_(own_calls), time_(drv) {
    resume();
  }
  void resume() {
    calls_ = counts();
    modelled_ = time_.ns();
  }
  void pause() {
    const driver_counts now = counts();
    for (std::size_t i = 0; i < now.calls.size(); ++i) {
      sum_.calls[i] += now.calls[i] - calls_.calls[i];
    }
    if (modelled_) modelled_sum_ += *time_.ns() - *modelled_;
  }
  // Does not count what `act` calls: each of `calls` once. Disturbs what is measured less than pause().
  template <class Act>
  status without(std::initializer_list<driver_call> calls, Act act) {
    const auto before = time_.ns();
    const status done = act();
    for (const driver_call c : calls) ++calls_.calls[static_cast<std::size_t>(c)];
    if (modelled_) *modelled_ += *time_.ns() - *before;
    return done;
  }
  const driver_counts &calls() const { return sum_; }
  std::optional<double> modelled_us() const {
    if (!modelled_) return std::nullopt;
    return static_cast<double>(modelled_sum_) / 1000;
  }

 private:
  driver_counts counts() const { return own_calls_ ? counts_of_process(drv_) : drv_.counts(); }

  const driver &drv_;
  bool own_calls_;
  modelled_time time_;
  driver_counts calls_, sum_;
  std::optional<std::uint64_t> modelled_;
  std::uint64_t modelled_sum_ = 0;
};

class player {
 public:
  player(const device &d, const replay_plan &plan, const replay_options &o)
      : device_(d),
        plan_(plan),
        options_(o),
        meter_(d.driver(), o.kind->own_calls),
        at_(plan.slots) {}

  result<replay_result> play() {
    STILLMAP_RETURN_IF_ERROR(prepare());
    driver_counts before_iteration;
    double modelled_before = 0;
    std::size_t begin = 0;
    while (begin < plan_.ops.size() && !out_.oom) {
      // Up to the next wait or boundary there are only requests.
      const auto end =
          std::find_if(plan_.ops.begin() + static_cast<std::ptrdiff_t>(begin), plan_.ops.end(),
                       [](const planned_op &op) {
                         return op.verb == trace_verb::wait || op.verb == trace_verb::iteration;
                       });
      const auto boundary = static_cast<std::size_t>(end - plan_.ops.begin());
      const std::size_t stop = std::min(boundary, look_at_);
      STILLMAP_RETURN_IF_ERROR(options_.verify ? checked(begin, stop) : timed(begin, stop));
      begin = stop;
      if (stop == look_at_ && !out_.oom) {
        look(stop - 1, std::nullopt);
        if (stop != boundary) continue;
      }
      if (out_.oom || stop == plan_.ops.size()) break;
      if (end->verb == trace_verb::iteration) {
        meter_.pause();
        out_.last_iteration = meter_.calls() - before_iteration;
        before_iteration = meter_.calls();
        if (const auto us = meter_.modelled_us()) {
          out_.modelled_last_us = *us - modelled_before;
          modelled_before = *us;
        }
        iteration_ns_.push_back({ns_, static_cast<double>(requests_)});
        ns_ = requests_ = 0;
        if (iteration_ns_.size() == 2 && plan_.iterations > 2) cpu_ns_.clear();
        meter_.resume();
      } else {
        STILLMAP_RETURN_IF_ERROR(wait(end->stream, end->slot));
      }
      ++begin;
    }
    meter_.pause();
    return finish();
  }

 private:
  status prepare() {
    meter_.pause();
    for (std::uint32_t i = 0; i < plan_.streams; ++i) {
      STILLMAP_ASSIGN_OR_RETURN(stream made, stream::create(device_));
      streams_.push_back(std::move(made));
      refs_.push_back(streams_.back());
    }
    STILLMAP_ASSIGN_OR_RETURN(event_, device_.driver().create_event());
    if (options_.verify) {
      STILLMAP_ASSIGN_OR_RETURN(
          checker_, block_checker::create(device_, refs_, plan_.slots, *options_.verify));
    }
    physical_before_ = physical_bytes(device_.driver());
    meter_.resume();
    target_options t = options_.settings;
    if (options_.capacity) t.limit = *options_.capacity;
    t.wait_before_free = options_.verify.has_value();
    t.history = options_.history;
    if (options_.timeline_points != 0) samples_.emplace(plan_, options_.timeline_points);
    if (options_.map) look_at_ = options_.look_after.value_or(peak_of_last_iteration(plan_)) + 1;
    STILLMAP_ASSIGN_OR_RETURN(target_, options_.kind->make(device_, t));
    return {};
  }

  status request(const planned_op &op) {
    if (op.verb == trace_verb::allocate) {
      const auto got = target_->allocate(op.bytes, refs_[op.stream]);
      if (!got) return tl::unexpected<error>(got.error());
      at_[op.slot] = *got;
      return {};
    }
    if (op.verb == trace_verb::use) return target_->record_use(at_[op.slot], refs_[op.stream]);
    const status freed = target_->free(at_[op.slot]);
    if (freed) at_[op.slot] = nullptr;
    return freed;
  }

  status sampled(const planned_op &op) {
    const status done = request(op);
    if (done) samples_->served(op, target_->committed_bytes());
    return done;
  }

  status timed(std::size_t begin, std::size_t end) {
    if (begin == end) return {};
    status done;
    const auto start = steady::now();
    std::size_t i = begin;
    if (options_.request_times) {
      for (; i < end && done; ++i) {
        const std::int64_t from = thread_cpu_ns();
        done = request(plan_.ops[i]);
        cpu_ns_.push_back(static_cast<std::uint32_t>(
            std::clamp<std::int64_t>(thread_cpu_ns() - from - clock_cost_, 0, UINT32_MAX)));
      }
    } else if (samples_) {
      for (; i < end && done; ++i) done = sampled(plan_.ops[i]);
    } else {
      for (; i < end && done; ++i) done = request(plan_.ops[i]);
    }
    if (!done) --i;  // the request that failed
    ns_ += ns_since(start);
    requests_ += i - begin;
    return done ? status{} : stopped(i, done.error());
  }

  // The same with patterns in every block. The checker's own calls are not counted.
  status checked(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const planned_op &op = plan_.ops[i];
      if (op.verb == trace_verb::free) {
        meter_.pause();
        STILLMAP_RETURN_IF_ERROR(checker_->before_free(op.slot));
        meter_.resume();
      }
      if (auto done = timed(i, i + 1); !done || out_.oom) return done;
      if (op.verb == trace_verb::free) continue;
      meter_.pause();
      STILLMAP_RETURN_IF_ERROR(op.verb == trace_verb::allocate
                                   ? checker_->allocated(op.slot, at_[op.slot], op.bytes, op.stream)
                                   : checker_->used(op.slot, op.stream));
      meter_.resume();
    }
    return {};
  }

  status stopped(std::size_t i, const error &e) {
    const planned_op &op = plan_.ops[i];
    if (op.verb != trace_verb::allocate || !e.is(errc::out_of_memory)) return tl::unexpected(e);
    out_.oom = true;
    if (options_.map) look(i, op.bytes);
    std::uint64_t live = 0;
    std::vector<std::uint64_t> of(plan_.slots);
    for (std::size_t k = 0; k < i; ++k) {
      const planned_op &past = plan_.ops[k];
      if (past.verb == trace_verb::allocate) live += of[past.slot] = past.bytes;
      if (past.verb == trace_verb::free) live -= of[past.slot];
    }
    out_.where_oom = fmt::format("operation {} of {}: {} on stream {}, with {} live and {} held",
                                 i + 1, plan_.ops.size(), format_bytes(op.bytes), op.stream,
                                 format_bytes(live), format_bytes(target_->committed_bytes()));
    return {};
  }

  void look(std::size_t op, std::optional<std::uint64_t> failed) {
    look_at_ = SIZE_MAX;
    meter_.pause();
    if (auto seen = target_->snapshot()) {
      for (heap_map::arena &a : seen->map.arenas) {
        const auto on = std::find(refs_.begin(), refs_.end(), a.stream);
        if (on == refs_.end()) continue;
        a.name =
            fmt::format("stream {}{}{}", on - refs_.begin(), a.name.empty() ? "" : ", ", a.name);
      }
      out_.moment = replay_moment{std::move(*seen), failed.has_value(), failed.value_or(0), op};
    }
    meter_.resume();
  }

  status wait(std::uint32_t from, std::uint32_t to) {
    return meter_.without(
        {driver_call::EventRecord, driver_call::StreamWaitEvent}, [&]() -> status {
          STILLMAP_RETURN_IF_ERROR(device_.driver().record_event(event_, refs_[from].get()));
          return device_.driver().stream_wait(refs_[to].get(), event_);
        });
  }

  void sum_up_times() {
    const std::size_t warm = iteration_ns_.size() > 2 ? 2 : 0;
    double ns = 0, requests = 0;
    std::vector<double> each;
    for (std::size_t i = warm; i < iteration_ns_.size(); ++i) {
      if (iteration_ns_[i].second == 0) continue;
      ns += iteration_ns_[i].first;
      requests += iteration_ns_[i].second;
      each.push_back(iteration_ns_[i].first / iteration_ns_[i].second);
    }
    if (each.empty()) return;
    out_.ns_per_op_mean = ns / requests;
    std::sort(each.begin(), each.end());
    out_.ns_per_op = (each[(each.size() - 1) / 2] + each[each.size() / 2]) / 2;
  }

  std::optional<request_times> cpu_times() {
    if (cpu_ns_.empty()) return std::nullopt;
    const auto within = [&](double share) {
      const auto at = cpu_ns_.begin() +
                      static_cast<std::ptrdiff_t>(share * static_cast<double>(cpu_ns_.size() - 1));
      std::nth_element(cpu_ns_.begin(), at, cpu_ns_.end());
      return static_cast<double>(*at);
    };
    return request_times{within(0.5), within(0.99), within(0.999), within(1)};
  }

  result<replay_result> finish() {
    out_.peak_live_bytes = plan_.peak_live_bytes;
    out_.ops = plan_.requests;
    out_.calls = meter_.calls();
    out_.modelled_us = meter_.modelled_us();
    out_.peak_committed_bytes = target_->peak_committed_bytes();
    out_.moved_bytes = target_->moved_bytes();
    out_.host_bytes = target_->host_bytes();
    out_.retries = target_->retries();
    out_.cpu_ns = cpu_times();
    if (samples_) out_.timeline = samples_->take();
    if (ns_ != 0) iteration_ns_.push_back({ns_, static_cast<double>(requests_)});
    sum_up_times();
    for (std::uint32_t slot = 0; slot < plan_.slots; ++slot) {
      if (at_[slot] == nullptr) continue;
      if (checker_) STILLMAP_RETURN_IF_ERROR(checker_->before_free(slot));
      STILLMAP_RETURN_IF_ERROR(target_->free(at_[slot]));
    }
    if (checker_) {
      STILLMAP_RETURN_IF_ERROR(checker_->finish());
      out_.bytes_checked = checker_->bytes_checked();
      checker_.reset();
    }
    target_.reset();
    STILLMAP_RETURN_IF_ERROR(device_.driver().destroy_event(event_));
    streams_.clear();
    out_.violations = violations(device_.driver());
    const auto left = physical_bytes(device_.driver());
    if (left && physical_before_ && *left > *physical_before_) {
      return fail(errc::corrupt,
                  fmt::format("'{}' left {} of device memory behind", options_.kind->name,
                              format_bytes(*left - *physical_before_)));
    }
    return std::move(out_);
  }

  device device_;
  const replay_plan &plan_;
  const replay_options &options_;
  call_meter meter_;
  std::vector<stream> streams_;
  std::vector<stream_ref> refs_;
  event_handle event_ = nullptr;
  std::unique_ptr<replay_target> target_;
  std::unique_ptr<block_checker> checker_;
  std::optional<memory_samples> samples_;
  std::vector<void *> at_;
  std::optional<std::uint64_t> physical_before_;
  double ns_ = 0;
  std::size_t requests_ = 0;
  std::size_t look_at_ = SIZE_MAX;  // before this operation
  std::vector<std::pair<double, double>> iteration_ns_;
  const std::int64_t clock_cost_ = options_.request_times ? clock_cost() : 0;
  std::vector<std::uint32_t> cpu_ns_;  // of each request
  replay_result out_;
};

}  // namespace

result<replay_result> run(const device &d, const replay_plan &plan, const replay_options &o) {
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(const auto limit, less_memory::leave(d, o.capacity, o.kind->has_limit));
  return player(d, plan, o).play();
}

result<std::uint64_t> find_min_capacity(const device &d, const replay_plan &plan, replay_options o,
                                        std::uint64_t enough, std::uint64_t from) {
  const std::uint64_t page = d.capabilities().page_bytes;
  std::uint64_t low = divide_up(std::max(plan.peak_live_bytes, from), page),
                high = divide_up(enough, page);
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    o.capacity = middle * page;
    STILLMAP_ASSIGN_OR_RETURN(const replay_result tried, run(d, plan, o));
    if (tried.oom) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return high * page;
}

double mutex_ns() {
  mutex m;
  double best = 1e9;
  constexpr int rounds = 100000;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto begin = steady::now();
    for (int i = 0; i < rounds; ++i) {
      m.lock();
      m.unlock();
    }
    best = std::min(best, ns_since(begin) / rounds);
  }
  return best;
}

}  // namespace stillmap::replay
