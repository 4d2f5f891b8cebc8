#include "bench/replay/serving/soak_run.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>

#include <unistd.h>

#include "bench/replay/simulator.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::replay {
namespace {

using steady = std::chrono::steady_clock;
constexpr double minute = 60;

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

class simulated_day {
 public:
  simulated_day(const device &d, server &of, const soak_options &o)
      : device_(d), server_(of), options_(o) {}

  result<soak_result> run(const std::function<void(const soak_sample &)> &each) {
    for (int i = 0; i < 2; ++i) {
      STILLMAP_ASSIGN_OR_RETURN(stream made, stream::create(device_));
      streams_.push_back(std::move(made));
      refs_.push_back(streams_.back());
    }
    caching_allocator_options options;
    options.limit = static_cast<std::size_t>(options_.limit);
    STILLMAP_ASSIGN_OR_RETURN(heap_, caching_allocator::create(device_, options));

    begin_sample(0);
    double now = 0;
    while (now < options_.seconds) {
      const double until = std::min({now + minute, sample_.ends, options_.seconds});
      ops_.clear();
      server_.serve(until, ops_);
      STILLMAP_RETURN_IF_ERROR(play());
      now = until;
      if (now < sample_.ends) continue;
      end_sample();
      if (each) each(out_.samples.back());
      begin_sample(now);
    }
    return finish();
  }

 private:
  // Times the requests of one minute of the server, and nothing else.
  status play() {
    if (at_.size() < server_.slots()) at_.resize(server_.slots());
    caching_allocator &heap = *heap_;
    void **const at = at_.data();
    status failed;
    const auto begin = steady::now();
    for (const serving_op &op : ops_) {
      if (op.verb == serving_verb::allocate) {
        const auto got = heap.allocate(op.bytes, refs_[op.stream]);
        if (got) {
          at[op.slot] = *got;
          continue;
        }
        failed = tl::unexpected<error>(got.error());
        if (!got.error().is(errc::out_of_memory)) break;
        at[op.slot] = nullptr;  // a server would refuse the request
        ++out_.refused;
        failed = {};
      } else {
        failed = op.verb == serving_verb::free ? heap.free(at[op.slot])
                                               : heap.record_use(at[op.slot], refs_[op.stream]);
        if (!failed) break;
      }
    }
    const double ns = std::chrono::duration<double, std::nano>(steady::now() - begin).count();
    if (!failed) return tl::unexpected(failed.error());
    ns_ += ns;
    sample_.ops += ops_.size();
    // The time of a minute with few requests is not reliable.
    if (ops_.size() >= 1000) {
      sample_.worst_ns_per_op =
          std::max(sample_.worst_ns_per_op, ns / static_cast<double>(ops_.size()));
    }
    return {};
  }

  void begin_sample(double now) {
    sample_ = {};
    sample_.ends = std::min(now + options_.sample_seconds, options_.seconds);
    ns_ = 0;
    calls_ = device_.driver().counts();
    modelled_ = modelled_time(device_.driver()).ns().value_or(0);
  }

  void end_sample() {
    const driver_counts made = device_.driver().counts() - calls_;
    const caching_allocator_stats s = heap_->stats();
    sample_.answered = server_.answered() - out_.answered;
    sample_.ns_per_op = sample_.ops != 0 ? ns_ / static_cast<double>(sample_.ops) : 0;
    sample_.calls = made.total();
    sample_.modelled_us =
        static_cast<double>(modelled_time(device_.driver()).ns().value_or(0) - modelled_) / 1000;
    sample_.moved = s.pages_moved - moved_;
    sample_.recalled = s.pages_recalled - recalled_;
    moved_ = s.pages_moved;
    recalled_ = s.pages_recalled;
    sample_.live = s.total.live;
    sample_.committed = s.total.committed;
    sample_.aliased = s.total.aliased;
    sample_.host_bytes = s.host_bytes;
    sample_.resident = resident_bytes();
    sample_.behind = server_.behind();
    out_.ops += sample_.ops;
    out_.answered += sample_.answered;
    out_.peak_committed = std::max<std::uint64_t>(out_.peak_committed, s.committed_peak);
    out_.samples.push_back(sample_);
  }

  result<soak_result> finish() {
    out_.peak_live = server_.peak_bytes();
    ops_.clear();
    server_.stop(ops_);
    STILLMAP_RETURN_IF_ERROR(play());
    STILLMAP_RETURN_IF_ERROR(heap_->empty_cache());
    STILLMAP_RETURN_IF_ERROR(heap_->empty_cache());
    out_.left_committed = heap_->stats().total.committed;
    heap_.reset();
    out_.violations = violations(device_.driver());
    return std::move(out_);
  }

  device device_;
  server &server_;
  const soak_options &options_;
  std::vector<stream> streams_;
  std::vector<stream_ref> refs_;
  std::unique_ptr<caching_allocator> heap_;
  std::vector<serving_op> ops_;
  std::vector<void *> at_;
  soak_result out_;
  soak_sample sample_;
  double ns_ = 0;
  driver_counts calls_;
  std::uint64_t modelled_ = 0, moved_ = 0, recalled_ = 0;
};

}  // namespace

result<soak_result> soak(const device &d, server &of, const soak_options &o,
                         const std::function<void(const soak_sample &)> &each) {
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return simulated_day(d, of, o).run(each);
}

}  // namespace stillmap::replay
