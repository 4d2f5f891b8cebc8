#include "stillmap/allocators/torch/internal/exact_segments.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>

#include "stillmap/allocators/torch/internal/allocator_object.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

struct CUstream_st;

namespace stillmap::torch_plugin {
namespace {

// From here on PyTorch asks for a segment for the tensor alone. Below it shares segments of 20 MiB.
constexpr std::size_t min_exact_bytes = std::size_t{10} << 20;
constexpr std::size_t rounding = 512;  // PyTorch's, of sizes
// Segments without a tensor are looked for when 1/32 of what there is has been requested since.
constexpr std::size_t release_fraction = 32;

#define STILLMAP_PLUGGABLE "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
constexpr const char *allocate_name = STILLMAP_PLUGGABLE "8allocateEm";
constexpr const char *begin_name =
    STILLMAP_PLUGGABLE "19beginAllocateToPoolEaSt4pairIyyESt8functionIFbP11CUstream_stEE";
constexpr const char *end_name = STILLMAP_PLUGGABLE "17endAllocateToPoolEaSt4pairIyyE";
constexpr const char *release_name = STILLMAP_PLUGGABLE "11releasePoolEaSt4pairIyyE";
constexpr const char *empty_name = STILLMAP_PLUGGABLE "10emptyCacheESt4pairIyyE";
#undef STILLMAP_PLUGGABLE

// c10::DataPtr as it is returned: in memory of the caller, because it has a destructor.
struct data_ptr {
  ~data_ptr() {}  // NOLINT: a trivial one would return it in registers
  std::array<void *, 4> words;
};
using stream_filter = std::function<bool(CUstream_st *)>;

// PyTorch's functions, all of them or none.
struct pytorch {
  void *self;
  data_ptr (*allocate)(void *self, std::size_t bytes);
  void (*begin)(void *self, std::int8_t device, mempool_id, stream_filter);
  void (*end)(void *self, std::int8_t device, mempool_id);
  void (*release)(void *self, std::int8_t device, mempool_id);
  void (*empty)(void *self, mempool_id);
  // at::cuda::MemPool(allocator, is_user_created, use_on_oom, no_split), and its id.
  void (*make_pool)(void *pool, std::shared_ptr<void> allocator, bool, bool, bool);
  mempool_id (*id_of)(void *pool);
  int (*current_device)(int *device);
};
constinit pytorch api{};
std::atomic<bool> api_is_set{false};  // for release_exact(), which may come before

struct context {
  mempool_id pool;
  int device;
  std::shared_ptr<void> allocator;
  std::optional<std::thread::id> thread;  // none: all
  bool begun = false;
};
struct exact_segment {
  std::size_t bytes;
  std::uint64_t serial;  // addresses are used again
};
struct exact_pool {
  mempool_id id, of;
  const void *segment;
  std::uint64_t serial;  // of its segment
};

// Never destroyed: tensors are freed while the process ends.
struct exact_state {
  mutex lock;  // not held while PyTorch is called, which calls forget_exact()
  std::vector<context> contexts STILLMAP_GUARDED_BY(lock);
  std::vector<exact_pool> pools STILLMAP_GUARDED_BY(lock);
  // Tensors that are being allocated: pools has room for them.
  std::size_t coming STILLMAP_GUARDED_BY(lock) = 0;
  // By address.
  std::unordered_map<const void *, exact_segment> segments STILLMAP_GUARDED_BY(lock);
  std::uint64_t serials STILLMAP_GUARDED_BY(lock) = 0;
  std::size_t bytes STILLMAP_GUARDED_BY(lock) = 0;      // of segments
  std::size_t requested STILLMAP_GUARDED_BY(lock) = 0;  // since the last release
};
exact_state &exact() {
  static exact_state *const made = new exact_state;
  return *made;
}
std::atomic<std::size_t> contexts_open{0};
// Captures of graphs and pools that are not ours, which PyTorch serves by its rules.
std::atomic<int> others_begun{0};  // written under exact_state::lock

struct request {
  std::size_t bytes = 0;
  const void *segment = nullptr;
  std::uint64_t serial = 0;
};
thread_local constinit request asked{};
thread_local constinit bool releasing = false;

std::optional<context> context_for(std::size_t bytes) {
  if (contexts_open == 0 || bytes < min_exact_bytes || others_begun != 0) return {};
  int device = -1;
  if (api.current_device(&device) != 0) return {};
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  const auto me = std::this_thread::get_id();
  for (auto c = all.contexts.rbegin(); c != all.contexts.rend(); ++c) {
    if (c->device == device && c->begun && c->thread.value_or(me) == me) return *c;
  }
  return {};
}

bool release_is_due(std::size_t bytes) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  all.requested += bytes;
  return all.requested >= all.bytes / release_fraction;
}

// A private pool of PyTorch's for one tensor, while it is allocated. PyTorch releases it with the tensor,
// because nothing refers to it.
class one_tensor {
 public:
  one_tensor(const context &c, std::size_t bytes)
      : device_(static_cast<std::int8_t>(c.device)), of_(c.pool) {
    {
      exact_state &all = exact();
      const lock_guard lock(all.lock);
      ++all.coming;
      const std::size_t needed = all.pools.size() + all.coming;
      if (needed > all.pools.capacity()) all.pools.reserve(2 * needed);
    }
    // The object is not used again, and its destructor would release the pool once more.
    alignas(std::max_align_t) std::array<std::byte, 512> object;
    api.make_pool(object.data(), c.allocator, true, false, false);
    id_ = api.id_of(object.data());
    const auto me = std::this_thread::get_id();
    api.begin(api.self, device_, id_,
              [me](CUstream_st *) { return std::this_thread::get_id() == me; });
    asked = {(bytes + rounding - 1) / rounding * rounding, nullptr, 0};
  }
  ~one_tensor() {
    const request was = std::exchange(asked, {});
    api.end(api.self, device_, id_);
    for (int reference = 0; reference < 2; ++reference) api.release(api.self, device_, id_);
    if (was.segment == nullptr) api.empty(api.self, id_);  // ends the pool
    exact_state &all = exact();
    const lock_guard lock(all.lock);
    --all.coming;
    if (was.segment == nullptr) return;
    all.pools.push_back({id_, of_, was.segment, was.serial});  // has room: see the constructor
  }
  one_tensor(const one_tensor &) = delete;

 private:
  std::int8_t device_;
  mempool_id id_, of_;
};

data_ptr allocate_exact(void *self, std::size_t bytes) {
  const auto c = context_for(bytes);
  if (!c) return api.allocate(self, bytes);
  if (release_is_due(bytes)) release_exact();
  const one_tensor only(*c, bytes);
  return api.allocate(self, bytes);
}

// Ours begins once for each context, marked by begin_exact().
void note_begin(mempool_id pool, int device) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  for (context &c : all.contexts) {
    if (c.pool == pool && c.device == device && !c.begun) {
      c.begun = true;
      return;
    }
  }
  ++others_begun;
}

void note_end(mempool_id pool, int device) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  for (context &c : all.contexts) {
    if (c.pool == pool && c.device == device && c.begun) {
      c.begun = false;
      return;
    }
  }
  if (others_begun > 0) --others_begun;  // what began before install() was not counted
}

void begin_to_pool(void *self, std::int8_t device, mempool_id pool, stream_filter takes) {
  api.begin(self, device, pool, std::move(takes));
  note_begin(pool, device);
}

void end_to_pool(void *self, std::int8_t device, mempool_id pool) {
  api.end(self, device, pool);
  note_end(pool, device);
}

status install() {
  STILLMAP_ASSIGN_OR_RETURN(const allocator_object of, allocator_object::current());
  pytorch p{};
  p.self = of.self();
  p.allocate = of.function<decltype(p.allocate)>(allocate_name);
  p.begin = of.function<decltype(p.begin)>(begin_name);
  p.end = of.function<decltype(p.end)>(end_name);
  p.release = of.function<decltype(p.release)>(release_name);
  p.empty = of.function<decltype(p.empty)>(empty_name);
  p.make_pool = of.find<decltype(p.make_pool)>(
      "_ZN2at4cuda7MemPoolC1ESt10shared_ptrIN3c104cuda20CUDACachingAllocator13CUDAAllocatorEEbbb");
  p.id_of = of.find<decltype(p.id_of)>("_ZN2at4cuda7MemPool2idEv");
  p.current_device = of.find<decltype(p.current_device)>("cudaGetDevice");
  if (p.allocate == nullptr || p.begin == nullptr || p.end == nullptr || p.release == nullptr ||
      p.empty == nullptr || p.make_pool == nullptr || p.id_of == nullptr ||
      p.current_device == nullptr) {
    return make_error(errc::not_supported,
                      "this version of PyTorch has other functions: its own rules hold");
  }
  api = p;
  api_is_set = true;
  const auto put = [&](const char *name, auto *mine) {
    return of.replace(name, reinterpret_cast<void *>(mine));
  };
  STILLMAP_RETURN_IF_ERROR(put(begin_name, &begin_to_pool));
  STILLMAP_RETURN_IF_ERROR(put(end_name, &end_to_pool));
  return put(allocate_name, &allocate_exact);
}

}  // namespace

status begin_exact(mempool_id pool, int device, void *allocator, bool all_threads) {
  const operation_scope scope("stillmap.torch.pool");
  static const status installed = install();
  STILLMAP_RETURN_IF_ERROR(installed);
  STILLMAP_ASSIGN_OR_RETURN(const allocator_object of, allocator_object::current());
  if (!of.pluggable(allocator)) {
    return make_error(errc::not_supported, "the pool's allocator is not a pluggable one");
  }
  return with_host_memory([&]() -> status {
    context c{pool, device, {std::shared_ptr<void>(), allocator}, {}};
    if (!all_threads) c.thread = std::this_thread::get_id();
    exact_state &all = exact();
    const lock_guard lock(all.lock);
    all.contexts.push_back(std::move(c));
    ++contexts_open;
    return {};
  });
}

void end_exact(mempool_id pool, int device) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  const auto c = std::find_if(all.contexts.begin(), all.contexts.end(), [&](const context &x) {
    return x.pool == pool && x.device == device;
  });
  if (c == all.contexts.end()) return;
  all.contexts.erase(c);
  --contexts_open;
}

void release_exact() {
  if (others_begun != 0 || !api_is_set) return;
  exact_state &all = exact();
  std::vector<mempool_id> ids;
  {
    const lock_guard lock(all.lock);
    all.requested = 0;
    ids.reserve(all.pools.size());
    for (const exact_pool &p : all.pools) ids.push_back(p.id);
  }
  releasing = contexts_open != 0;
  for (const mempool_id &id : ids) api.empty(api.self, id);
  releasing = false;
  const lock_guard lock(all.lock);
  std::erase_if(all.pools, [&](const exact_pool &p) STILLMAP_REQUIRES(all.lock) {
    const auto found = all.segments.find(p.segment);
    return found == all.segments.end() || found->second.serial != p.serial;
  });
}

std::vector<mempool_id> exact_pools_of(mempool_id pool) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  std::vector<mempool_id> ids;
  for (const exact_pool &p : all.pools) {
    if (p.of == pool) ids.push_back(p.id);
  }
  return ids;
}

std::size_t exact_bytes_at(const void *address) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  const auto found = all.segments.find(address);
  return found == all.segments.end() ? 0 : found->second.bytes;
}

std::size_t exact_request(std::size_t bytes) {
  return asked.bytes != 0 ? std::min(asked.bytes, bytes) : bytes;
}

void note_exact(const void *segment, std::size_t bytes) noexcept {
  if (asked.bytes == 0) return;
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  try {
    all.segments[segment] = {bytes, ++all.serials};
  } catch (const std::bad_alloc &) {
    return;  // it is released when PyTorch empties its cache
  }
  all.bytes += bytes;
  asked.segment = segment;
  asked.serial = all.serials;
}

bool forget_exact(const void *segment) {
  exact_state &all = exact();
  const lock_guard lock(all.lock);
  const auto found = all.segments.find(segment);
  if (found == all.segments.end()) return false;
  all.bytes -= found->second.bytes;
  all.segments.erase(found);
  return true;
}

bool releasing_exact() {
  return releasing;
}

}  // namespace stillmap::torch_plugin
