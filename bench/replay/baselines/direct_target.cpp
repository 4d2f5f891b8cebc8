// Baseline: cuMemAlloc and cuMemFree for each request: the cost of every call, and the least memory.
#include <unordered_map>

#include "bench/replay/internal/failure.h"
#include "bench/replay/replay_target.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

class direct_target final : public replay_target {
 public:
  direct_target(const device &d, const target_options &o)
      : device_(d), wait_before_free_(o.wait_before_free) {}
  ~direct_target() override {
    for (const auto &[at, bytes] : blocks_) {
      report_if_failed(device_.driver().free(device_address(at)));
    }
  }

  result<void *> allocate(std::size_t bytes, stream_ref) override {
    STILLMAP_ASSIGN_OR_RETURN(const device_address at, device_.driver().allocate(bytes));
    const std::size_t whole = round_up(bytes, 512);
    held_.add(whole);
    blocks_.emplace(at.value(), whole);
    return at.pointer();
  }

  status free(void *at) override {
    const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(at));
    if (found == blocks_.end()) {
      const operation_scope scope("direct::free");
      return make_error(errc::invalid_argument, "no such block");
    }
    // A GPU's cuMemFree waits for the device. CUDA does not promise that for work of streams that
    // do not synchronise with the default one, so a checked replay, which queues work, waits first.
    if (wait_before_free_) STILLMAP_RETURN_IF_ERROR(device_.driver().synchronize_context());
    STILLMAP_RETURN_IF_ERROR(device_.driver().free(device_address(found->first)));
    held_.drop(found->second);
    blocks_.erase(found);
    return {};
  }

  status record_use(void *, stream_ref) override { return {}; }
  std::uint64_t committed_bytes() const override { return held_.now(); }
  std::uint64_t peak_committed_bytes() const override { return held_.peak(); }

 private:
  device device_;
  bool wait_before_free_;
  held_bytes held_{UINT64_MAX};
  std::unordered_map<std::uint64_t, std::size_t> blocks_;
};

}  // namespace

result<std::unique_ptr<replay_target>> make_direct(const device &d, const target_options &o) {
  return std::make_unique<direct_target>(d, o);
}

}  // namespace stillmap::replay
