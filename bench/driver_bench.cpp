// The cost of one call of each driver function through Stillmap's driver interface. On a GPU this
// is the machine's cost table, which hostcuda's `costs=` reads; on hostcuda it is hostcuda's own
// overhead.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench/support/session.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

// Times `call(i)` for `n` different i, as one; false ended the case.
bool timed(session &s, stopwatch *watch, std::size_t n,
           const std::function<status(std::size_t)> &call) {
  if (watch != nullptr) watch->start();
  for (std::size_t i = 0; i < n; ++i) {
    if (const status done = call(i); !done) {
      s.fail(done.error());
      return false;
    }
  }
  if (watch != nullptr) watch->stop();
  return true;
}

template <class T>
status keep(const result<T> &from, T &to) {
  STILLMAP_ASSIGN_OR_RETURN(to, from);
  return {};
}

// The life of `n` pieces of memory: each step for all of them, then the next. Only the step that
// `which` names is timed.
bool live(session &s, std::size_t n, std::size_t bytes, std::string_view which, stopwatch &watch) {
  const driver &drv = s.driver();
  const access_grant grant{on_device(0), access_mode::read_write};
  std::vector<device_address> at(n);
  std::vector<physical_handle> pages(n), again(n);
  const auto range = [&](std::size_t i) { return virtual_range{at[i], bytes}; };
  const auto run = [&](const char *now, const std::function<status(std::size_t)> &call) {
    return timed(s, which == now ? &watch : nullptr, n, call);
  };
  access_mode mode;
  return run("MemAddressReserve",
             [&](std::size_t i) { return keep(drv.reserve_addresses(bytes, 0, {}), at[i]); }) &&
         run("MemCreate",
             [&](std::size_t i) {
               return keep(drv.create_physical(bytes, {on_device(0)}), pages[i]);
             }) &&
         run("MemMap", [&](std::size_t i) { return drv.map(at[i], bytes, pages[i]); }) &&
         run("MemSetAccess", [&](std::size_t i) { return drv.set_access(range(i), &grant, 1); }) &&
         run("MemGetAccess",
             [&](std::size_t i) { return keep(drv.get_access(at[i], on_device(0)), mode); }) &&
         run("MemRetainAllocationHandle",
             [&](std::size_t i) { return keep(drv.retain_physical(at[i]), again[i]); }) &&
         timed(s, nullptr, n, [&](std::size_t i) { return drv.release_physical(again[i]); }) &&
         run("MemUnmap", [&](std::size_t i) { return drv.unmap(range(i)); }) &&
         run("MemRelease", [&](std::size_t i) { return drv.release_physical(pages[i]); }) &&
         run("MemAddressFree", [&](std::size_t i) { return drv.free_addresses(range(i)); });
}

void vmm_call(benchmark::State &state, const char *which) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  const std::size_t n = std::clamp<std::size_t>(1_GiB / bytes, 1, smoke() ? 4 : 64);
  session s(state, memory_kind::backed, n * bytes);
  if (!s) return;
  if (!s.dev().capabilities().vmm) return state.SkipWithError("no VMM");
  const context_guard guard(s.driver(), s.dev().context());
  for (auto _ : state) {
    stopwatch watch;
    if (!live(s, n, bytes, which, watch)) return;
    state.SetIterationTime(watch.seconds() / static_cast<double>(n));
  }
}

// Memory from the driver's own allocators: given and taken back.
enum class allocator { plain, async, pinned };

void allocate_and_free(benchmark::State &state, allocator which, bool time_free) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  const std::size_t n = std::clamp<std::size_t>(1_GiB / bytes, 1, smoke() ? 4 : 64);
  session s(state, memory_kind::backed, n * bytes);
  if (!s) return;
  const driver &drv = s.driver();
  if (which == allocator::async && !s.dev().capabilities().memory_pools) {
    return state.SkipWithError("no cuMemAllocAsync");
  }
  const context_guard guard(drv, s.dev().context());
  std::vector<device_address> at(n);
  std::vector<void *> host(n);
  for (auto _ : state) {
    stopwatch watch;
    const auto give = [&](std::size_t i) -> status {
      if (which == allocator::pinned) return keep(drv.allocate_host(bytes), host[i]);
      return keep(
          which == allocator::plain ? drv.allocate(bytes) : drv.allocate_async(bytes, nullptr),
          at[i]);
    };
    const auto take = [&](std::size_t i) -> status {
      if (which == allocator::pinned) return drv.free_host(host[i]);
      return which == allocator::plain ? drv.free(at[i]) : drv.free_async(at[i], nullptr);
    };
    if (!timed(s, time_free ? nullptr : &watch, n, give)) return;
    if (!timed(s, time_free ? &watch : nullptr, n, take)) return;
    if (!s.check(drv.synchronize_context())) return;
    state.SetIterationTime(watch.seconds() / static_cast<double>(n));
  }
}

// ---- calls that need nothing but one another ---------------------------------------------------

struct tools {
  const driver &drv;
  context_handle context;
  stream on;
  event_handle event = nullptr;
  device_address memory;
  std::vector<char> host;
};
using tool_call = status (*)(tools &, std::size_t bytes);

void small_call(benchmark::State &state, tool_call call) {
  constexpr std::size_t batch = 64;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  session s(state, memory_kind::backed, 1_GiB);
  if (!s) return;
  const driver &drv = s.driver();
  const context_guard guard(drv, s.dev().context());
  auto on = stream::create(s.dev());
  if (!s.check(on)) return;
  tools t{drv, s.dev().context(), std::move(*on), nullptr, {}, std::vector<char>(bytes * 2, 1)};
  if (!s.check(keep(drv.create_event(), t.event))) return;
  if (!s.check(keep(drv.allocate(std::max<std::size_t>(bytes * 2, 256)), t.memory))) return;
  if (!s.check(drv.record_event(t.event, t.on.get()))) return;
  if (!s.check(call(t, bytes)) || !s.check(drv.synchronize_context())) return;  // warm
  for (auto _ : state) {
    stopwatch watch;
    if (!timed(s, &watch, batch, [&](std::size_t) { return call(t, bytes); })) break;
    if (!s.check(drv.synchronize_context())) break;
    state.SetIterationTime(watch.seconds() / batch);
  }
  if (const status d = drv.destroy_event(t.event); !d) report_background_error(d.error());
  if (const status d = drv.free(t.memory); !d) report_background_error(d.error());
}

template <class T>
status outcome(const result<T> &r) {
  return r ? status{} : tl::unexpected<error>(r.error());
}

// Each is queued 64 times in a row: the call, not the work.
const struct {
  const char *name;
  tool_call call;
  bool sized = false;
} small_calls[] = {
    {"CtxGetCurrent", [](tools &t, std::size_t) { return outcome(t.drv.current_context()); }},
    {"CtxPushCurrent+PopCurrent",
     [](tools &t, std::size_t) -> status {
       STILLMAP_RETURN_IF_ERROR(t.drv.push_context(t.context));
       return t.drv.pop_context();
     }},
    {"CtxSynchronize", [](tools &t, std::size_t) { return t.drv.synchronize_context(); }},
    {"MemGetInfo", [](tools &t, std::size_t) { return outcome(t.drv.memory_info_now()); }},
    {"EventCreate+Destroy",
     [](tools &t, std::size_t) {
       const auto e = t.drv.create_event();
       return e ? t.drv.destroy_event(*e) : outcome(e);
     }},
    {"EventRecord", [](tools &t, std::size_t) { return t.drv.record_event(t.event, t.on.get()); }},
    {"EventQuery", [](tools &t, std::size_t) { return outcome(t.drv.event_done(t.event)); }},
    {"EventSynchronize", [](tools &t, std::size_t) { return t.drv.synchronize_event(t.event); }},
    {"StreamWaitEvent",
     [](tools &t, std::size_t) { return t.drv.stream_wait(t.on.get(), t.event); }},
    {"StreamQuery", [](tools &t, std::size_t) { return outcome(t.drv.stream_idle(t.on.get())); }},
    {"StreamIsCapturing",
     [](tools &t, std::size_t) { return outcome(t.drv.stream_capturing(t.on.get())); }},
    {"ThreadExchangeStreamCaptureMode",
     [](tools &t, std::size_t) {
       return outcome(t.drv.exchange_capture_mode(stillmap::capture_mode::global));
     }},
    {"StreamSynchronize",
     [](tools &t, std::size_t) { return t.drv.synchronize_stream(t.on.get()); }},
    {"StreamCreate+Destroy",
     [](tools &t, std::size_t) {
       const auto made = t.drv.create_stream(true);
       return made ? t.drv.destroy_stream(*made) : outcome(made);
     }},
    {"MemcpyHtoD",
     [](tools &t, std::size_t n) { return t.drv.copy_to_device(t.memory, t.host.data(), n); },
     true},
    {"MemcpyDtoH",
     [](tools &t, std::size_t n) { return t.drv.copy_to_host(t.host.data(), t.memory, n); }, true},
    {"MemcpyDtoDAsync",
     [](tools &t, std::size_t n) {
       return t.drv.copy_on_device_async(t.memory, t.memory + n, n, t.on.get());
     },
     true},
    {"MemcpyHtoDAsync",
     [](tools &t, std::size_t n) {
       return t.drv.copy_to_device_async(t.memory, t.host.data(), n, t.on.get());
     },
     true},
    {"MemsetD8Async",
     [](tools &t, std::size_t n) { return t.drv.set_bytes_async(t.memory, 1, n, t.on.get()); },
     true},
};

// ---- registration ------------------------------------------------------------------------------

void per_call(benchmark::internal::Benchmark *b, int iterations) {
  b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(smoke() ? 1 : iterations);
}

template <class... A>
void sized(const std::string &name, std::initializer_list<std::int64_t> mib, A... arguments) {
  auto *b = benchmark::RegisterBenchmark(name.c_str(), arguments...)->ArgName("MiB");
  for (const std::int64_t n : mib) {
    if (!smoke() || n <= 64) b->Arg(n);
  }
  per_call(b, 5);
}

const int registered = [] {
  for (const char *const step :
       {"MemAddressReserve", "MemCreate", "MemMap", "MemSetAccess", "MemGetAccess",
        "MemRetainAllocationHandle", "MemUnmap", "MemRelease", "MemAddressFree"}) {
    sized(step, {2, 64, 1024}, vmm_call, step);
  }
  const struct {
    const char *give, *take;
    allocator which;
  } allocators[] = {{"MemAlloc", "MemFree", allocator::plain},
                    {"MemAllocAsync", "MemFreeAsync", allocator::async},
                    {"MemHostAlloc", "MemFreeHost", allocator::pinned}};
  for (const auto &a : allocators) {
    sized(a.give, {2, 64}, allocate_and_free, a.which, false);
    sized(a.take, {2, 64}, allocate_and_free, a.which, true);
  }
  for (const auto &c : small_calls) {
    auto *b = benchmark::RegisterBenchmark(c.name, small_call, c.call)->ArgName("bytes");
    b->Arg(c.sized ? 4 : 0);
    if (c.sized) b->Arg(64 << 10)->Arg(2 << 20);
    per_call(b, 100);
  }
  return 0;
}();

}  // namespace
}  // namespace stillmap::bench
