#include "tests/allocators/heap_model.h"

#include <cuda.h>

#include <algorithm>
#include <bit>
#include <random>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/page_pool.h"
#include "tests/allocators/checked_heap.h"
#include "tests/support/small_machine.h"

namespace stillmap::testing {
namespace {

constexpr std::size_t stream_count = 3;

struct broken {
  std::string what;
};
void demand(bool holds, const std::string &what) {
  if (!holds) throw broken{what};
}

class world {
 public:
  world(std::size_t mib, std::uint64_t seed, std::size_t page_scale,
        const std::optional<planned_fault> &fault, const steady_faults *steady,
        heap_model_outcome &out)
      : out_(out), fault_(fault), steady_(steady) {
    if (steady_ != nullptr) dice_.seed(steady_->seed);
    demand(small_machine::start(mib, seed) != nullptr, "the driver does not start");
    auto opened = device::open(0);
    demand(opened.has_value(), "the device does not open");
    device_.emplace(*opened);
    for (std::size_t i = 0; i < stream_count; ++i) {
      auto made = stream::create(*device_);
      demand(made.has_value(), "no stream");
      streams_.push_back(std::move(*made));
    }
    page_ = page_scale * device_->capabilities().page_bytes;
    heap_.emplace(*device_, caching_allocator_options{.page_bytes = page_});
    heap_->before_call = [this] { arm(); };
    heap_->after_call = [this] { disarm(); };
  }

  void perform(const op &o) {
    fired_now_ = false;
    draw();
    if (o.name == "alloc") {
      allocate(o);
    } else if (o.name == "limit") {
      heap_->heap().set_limit(o.arg(0) == 0 ? SIZE_MAX : o.arg(0) * page());
    } else if (o.name == "trim") {
      status s = heap_->trim(o.arg(0) * page());
      demand(s || fired_now_, "trim: " + (s ? "" : s.error().message()));
      judge(s.has_value());
      if (!s && steady_ != nullptr) {
        check();
        fired_now_ = false;
        s = heap_->trim(o.arg(0) * page());
        demand(s.has_value(), "trim, again: " + (s ? "" : s.error().message()));
      }
    } else if (o.name == "settle") {
      heap_->settle();
    } else if (o.name == "free_nth") {
      free_nth(o.arg(0));
    } else if (!heap_->blocks().empty()) {
      const auto &blocks = heap_->blocks();
      void *const at =
          device_address(
              std::next(blocks.begin(), static_cast<long>(o.arg(0) % blocks.size()))->first)
              .pointer();
      const stream_ref other = streams_[o.arg(1) % stream_count];
      if (o.name != "use") std::erase(by_age_, at);
      const status s = o.name == "use"       ? heap_->use_on(at, other)
                       : o.name == "free_on" ? heap_->free_on(at, other)
                                             : heap_->free(at);
      demand(s.has_value(), o.name + ": " + (s ? "" : s.error().message()));
      judge(true);
    }
    check();
  }

  void finish() {
    drawn_.reset();
    heap_->drop_all();
    heap_->settle();
    check();
    const status s = heap_->trim(0);
    demand(s || fired_now_, "the last trim: " + (s ? "" : s.error().message()));
    // A page that an unlucky call left behind goes with the next.
    demand(heap_->heap().empty_cache().has_value(), "emptying at the end");
    const caching_allocator_stats n = heap_->heap().stats();
    demand(n.total.committed == 0,
           "memory is kept when nothing is handed out: " + std::to_string(n.total.committed));
    out_.pages_moved = n.pages_moved;
    out_.pages_recalled = n.pages_recalled;
    out_.host_waits = n.host_waits;
    heap_.reset();
    demand(device_->space().stats().live_mappings == 0, "mappings are left");
    demand(device_->space().stats().live_blocks == 0, "reservations are left");
    demand(device_->space().stats().mapped_bytes == 0, "chunks are left");
  }

  ~world() {
    static_cast<void>(small_machine::stop_failing(""));
    heap_.reset();
    streams_.clear();
    device_.reset();
  }

 private:
  std::size_t page() const { return page_; }

  void allocate(const op &o) {
    allocate_options how;
    how.alignment = std::size_t{1} << (o.arg(2) % 23);
    how.zero = o.arg(3) == 1;
    const stream_ref s = streams_[o.arg(1) % stream_count];
    const std::size_t bytes = o.arg(0);
    auto got = heap_->allocate(bytes, s, how);
    judge(got.has_value());
    for (int attempt = 1; !got && fired_now_; ++attempt) {
      check();
      fired_now_ = false;
      if (attempt < 6) draw();
      if (attempt >= 6) drawn_.reset();
      got = heap_->allocate(bytes, s, how);
      judge(got.has_value());
    }
    if (got) {
      by_age_.push_back(*got);
      return;
    }
    demand(got.error().is(errc::out_of_memory), got.error().message());
    ++out_.refused;
    // Then there was not enough: neither in free pages, nor to create.
    const caching_allocator_stats n = heap_->heap().stats();
    const std::size_t limit = heap_->heap().limit();
    const std::size_t allowed = limit > n.total.committed ? limit - n.total.committed : 0;
    if (device_->capabilities().vmm) {
      const std::size_t there =
          n.total.free_whole_pages + n.total.cached +
          round_down(std::min(device_->memory()->free.bytes(), allowed), page());
      demand(there < bytes + how.alignment + page(),
             "it would have fitted: " + std::to_string(there) + " for " + std::to_string(bytes));
      return;
    }
    // Where pages stay where they are: no chunk is left that could have gone back, and what the
    // device has is too little.
    if (bytes > device_->total_memory().bytes()) return;
    demand(unused_chunks() == 0, "a chunk that nobody uses was kept");
    const std::size_t fresh = std::min(device_->memory()->free.bytes(), allowed);
    demand(
        fresh < round_up(bytes + how.alignment, device_->capabilities().page_bytes),
        "a chunk could have been had: " + std::to_string(fresh) + " for " + std::to_string(bytes));
  }

  void free_nth(std::size_t i) {
    if (by_age_.empty()) return;
    const auto at = by_age_.begin() + static_cast<std::ptrdiff_t>(i % by_age_.size());
    const status s = heap_->free(*at);
    demand(s.has_value(), "free_nth: " + (s ? "" : s.error().message()));
    by_age_.erase(at);
    judge(true);
  }

  std::size_t unused_chunks() {
    std::size_t n = 0;
    const heap_map drawn = heap_->heap().map().value();
    for (const heap_map::arena &a : drawn.arenas) {
      for (const virtual_range &r : a.reserved) {
        const auto used = [&](const heap_extent &s) {
          return s.range.overlaps(r) && s.part != heap_part::free && s.part != heap_part::cached;
        };
        n += std::none_of(a.extents.begin(), a.extents.end(), used) ? 1 : 0;
      }
    }
    return n;
  }

  void check() {
    const std::string wrong = heap_->disagreement();
    demand(wrong.empty(), wrong);
  }

  // The next fault of steady_faults.
  void draw() {
    if (steady_ == nullptr || steady_->calls.empty()) return;
    if (drawn_ && dice_() % 8 != 0) return;  // it was not met so far
    planned_fault next;
    next.call = steady_->calls[dice_() % steady_->calls.size()];
    next.nth = dice_() % 2 == 0 ? 1 : 1 + dice_() % (dice_() % 3 == 0 ? 12 : 3);
    next.code = dice_() % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    drawn_ = next;
  }
  // What became of an operation in which it was met.
  void judge(bool done) {
    if (!drawn_ || !fired_now_) return;
    ++out_.faults.met[{drawn_->call, drawn_->code}];
    ++(done ? out_.faults.served : out_.faults.said);
    drawn_.reset();
  }

  void arm() {
    calls_before_ = device_->driver().counts();
    for (const auto &f : {drawn_, fault_}) {
      if (f) small_machine::fail(f->call, f->nth, f->code);
    }
  }
  void disarm() {
    const driver_counts made = device_->driver().counts() - calls_before_;
    for (std::size_t i = 0; i < driver_call_count; ++i) out_.calls.calls[i] += made.calls[i];
    if (drawn_) fired_now_ = small_machine::stop_failing(drawn_->call);
    if (!fault_) return;
    static_cast<void>(small_machine::stop_failing(fault_->call));
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      if (fault_->call != name_of(static_cast<driver_call>(i))) continue;
      if (made.calls[i] < fault_->nth) {
        fault_->nth -= made.calls[i];
        return;
      }
      fired_now_ = out_.fired = true;
      fault_.reset();
      return;
    }
  }

  heap_model_outcome &out_;
  std::optional<planned_fault> fault_;
  const steady_faults *steady_;
  std::optional<planned_fault> drawn_;
  std::mt19937_64 dice_;
  bool fired_now_ = false;
  driver_counts calls_before_{};
  std::optional<device> device_;
  std::size_t page_ = 0;  // of the heap
  std::vector<stream> streams_;
  std::optional<checked_heap> heap_;
  std::vector<void *> by_age_;
};

heap_model_outcome run(const op_sequence &ops, const std::optional<planned_fault> &fault,
                       const steady_faults *steady) {
  heap_model_outcome out;
  std::size_t at = 0;
  try {
    std::size_t mib = 64;
    std::uint64_t seed = 1, page_scale = 1;
    if (!ops.empty() && ops.front().name == "machine") {
      mib = std::clamp<std::size_t>(ops.front().arg(0), 8, 512);
      seed = ops.front().arg(1);
      page_scale = std::bit_ceil(std::clamp<std::uint64_t>(ops.front().arg(2), 1, 8));
    }
    {
      world w(mib, seed, page_scale, fault, steady, out);
      for (; at < ops.size(); ++at) {
        if (ops[at].name != "machine") w.perform(ops[at]);
      }
      w.finish();
    }
    const std::string left = small_machine::leftovers(), wrong = small_machine::violation();
    demand(left.empty(), "left behind: " + left);
    demand(wrong.empty(), wrong);
  } catch (const broken &b) {
    out.failed = op_failure{at, b.what};
  }
  return out;
}

}  // namespace

heap_model_outcome run_heap_model(const op_sequence &ops,
                                  const std::optional<planned_fault> &fault) {
  return run(ops, fault, nullptr);
}
heap_model_outcome run_heap_model(const op_sequence &ops, const steady_faults &faults) {
  return run(ops, std::nullopt, &faults);
}

op_sequence generate_heap_ops(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const std::uint64_t mib = 32 + 16 * below(4);
  const std::uint64_t page_scale = seed % 4 == 3 ? 4 : seed % 4 == 1 ? 2 : 1;
  op_sequence out{{"machine", {mib, below(4) == 0 ? 0 : seed, page_scale}}};
  // A few sizes come again and again, as in programs.
  std::uint64_t favourites[6];
  for (std::uint64_t &f : favourites) {
    f = 1 + below(std::uint64_t{1} << (9 + below(15)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bytes =
        below(3) == 0 ? 1 + below(std::uint64_t{1} << (8 + below(17))) : favourites[below(6)];
    switch (below(20)) {
      case 0:
        out.push_back({"use", {below(1000), below(3)}});
        break;
      case 1:
        out.push_back({"free_on", {below(1000), below(3)}});
        break;
      case 2:
        if (below(3) == 0) out.push_back({"trim", {below(6)}});
        break;
      case 3:
        if (below(4) == 0) out.push_back({"limit", {below(2) == 0 ? 0 : below(mib / 2)}});
        break;
      case 4:
        if (below(3) == 0) out.push_back({"settle", {}});
        break;
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        out.push_back({"free", {below(1000)}});
        break;
      default:
        out.push_back({"alloc",
                       {bytes, below(3), below(8) == 0 ? below(23) : 0,
                        static_cast<std::uint64_t>(below(10) == 0)}});
    }
  }
  return out;
}

op_sequence generate_heap_loop(std::uint64_t seed, std::size_t iterations) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  constexpr std::uint64_t mib = std::uint64_t{1} << 20, machine = 48;
  op_sequence iteration;
  std::vector<std::uint64_t> live;
  std::uint64_t bytes = 0;
  for (std::uint64_t phase = 0; phase < 6; ++phase) {
    const std::uint64_t on = below(stream_count);
    while (bytes < (machine - 10) * mib) {
      const std::uint64_t n = below(4) == 0 ? 1 + below(mib) : mib + below(7 * mib);
      iteration.push_back({"alloc", {n, below(8) == 0 ? below(stream_count) : on, 0, 0}});
      live.push_back(n);
      bytes += n;
    }
    const std::size_t keep = phase == 5 ? 0 : below(4);
    while (live.size() > keep) {
      const std::uint64_t i = below(live.size());
      iteration.push_back({"free_nth", {i}});
      bytes -= live[i];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  op_sequence out{{"machine", {machine, below(4) == 0 ? 0 : seed}}};
  for (std::size_t i = 0; i < iterations; ++i) {
    out.insert(out.end(), iteration.begin(), iteration.end());
  }
  return out;
}

}  // namespace stillmap::testing
