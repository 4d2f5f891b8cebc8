// Baseline: the driver's stream-ordered pool with an unlimited release threshold, as frameworks use
// it.
#include <unordered_map>
#include <vector>

#include "bench/replay/internal/failure.h"
#include "bench/replay/replay_target.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::replay {
namespace {

// Attributes of a pool by their numbers in CUDA's interface. Stillmap's driver interface has no
// calls for them, so they are looked up here.
constexpr int keeps_bytes = 4;     // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
constexpr int reserved_bytes = 5;  // CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
constexpr int reserved_peak = 6;   // CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH

struct pool_calls {
  using pool = void *;
  int (*get_default)(pool *, int) = nullptr;
  int (*set)(pool, int, void *) = nullptr;
  int (*get)(pool, int, void *) = nullptr;
  int (*trim)(pool, std::size_t) = nullptr;

  explicit pool_calls(const driver &drv) {
    get_default = reinterpret_cast<decltype(get_default)>(drv.symbol("cuDeviceGetDefaultMemPool"));
    set = reinterpret_cast<decltype(set)>(drv.symbol("cuMemPoolSetAttribute"));
    get = reinterpret_cast<decltype(get)>(drv.symbol("cuMemPoolGetAttribute"));
    trim = reinterpret_cast<decltype(trim)>(drv.symbol("cuMemPoolTrimTo"));
  }
  bool all() const { return get_default && set && get && trim; }
};

class pool_target final : public replay_target {
 public:
  pool_target(const device &d, const pool_calls &calls, pool_calls::pool of)
      : device_(d), calls_(calls), pool_(of) {}
  ~pool_target() override {
    std::uint64_t nothing = 0;
    for (const auto &[at, b] : blocks_)
      report_if_failed(device_.driver().free_async(device_address(at), b.on.get()));
    if (event_ != nullptr) report_if_failed(device_.driver().destroy_event(event_));
    report_if_failed(device_.driver().synchronize_context());
    calls_.set(pool_, keeps_bytes, &nothing);
    calls_.trim(pool_, 0);
    calls_.set(pool_, reserved_peak, &nothing);  // falls to what is reserved now
  }

  result<void *> allocate(std::size_t bytes, stream_ref on) override {
    STILLMAP_ASSIGN_OR_RETURN(const device_address at,
                              device_.driver().allocate_async(bytes, on.get()));
    blocks_.emplace(at.value(), block{on, {}});
    return at.pointer();
  }

  status free(void *at) override {
    const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(at));
    if (found == blocks_.end()) {
      const operation_scope scope("pool::free");
      return make_error(errc::invalid_argument, "no such block");
    }
    const driver &drv = device_.driver();
    const block &b = found->second;
    for (const stream_ref s : b.uses) {  // the free is ordered after other streams' work
      if (event_ == nullptr) {
        STILLMAP_ASSIGN_OR_RETURN(event_, drv.create_event());
      }
      STILLMAP_RETURN_IF_ERROR(drv.record_event(event_, s.get()));
      STILLMAP_RETURN_IF_ERROR(drv.stream_wait(b.on.get(), event_));
    }
    STILLMAP_RETURN_IF_ERROR(drv.free_async(device_address(found->first), b.on.get()));
    blocks_.erase(found);
    return {};
  }

  status record_use(void *at, stream_ref on) override {
    const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(at));
    if (found == blocks_.end()) {
      const operation_scope scope("pool::record_use");
      return make_error(errc::invalid_argument, "no such block");
    }
    if (on != found->second.on) found->second.uses.push_back(on);
    return {};
  }

  std::uint64_t committed_bytes() const override { return ask(reserved_bytes); }
  std::uint64_t peak_committed_bytes() const override { return ask(reserved_peak); }

 private:
  struct block {
    stream_ref on;
    std::vector<stream_ref> uses;
  };
  std::uint64_t ask(int what) const {
    std::uint64_t bytes = 0;
    return calls_.get(pool_, what, &bytes) == 0 ? bytes : 0;
  }

  device device_;
  pool_calls calls_;
  pool_calls::pool pool_;
  event_handle event_ = nullptr;  // one is enough: a wait keeps the recording it was made with
  std::unordered_map<std::uint64_t, block> blocks_;
};

}  // namespace

result<std::unique_ptr<replay_target>> make_pool(const device &d, const target_options &) {
  const pool_calls calls(d.driver());
  pool_calls::pool of = nullptr;
  std::uint64_t all = UINT64_MAX;
  if (!d.capabilities().memory_pools || !calls.all() || calls.get_default(&of, d.ordinal()) != 0 ||
      calls.set(of, keeps_bytes, &all) != 0) {
    return fail(errc::not_supported,
                "this driver has no memory pools (cuMemAllocAsync): 'pool' cannot be replayed");
  }
  return std::make_unique<pool_target>(d, calls, of);
}

}  // namespace stillmap::replay
