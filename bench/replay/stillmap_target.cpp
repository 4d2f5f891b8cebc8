// The caching allocator of this project.
#include "bench/replay/replay_target.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::replay {
namespace {

class stillmap_target final : public replay_target {
 public:
  explicit stillmap_target(std::unique_ptr<caching_allocator> heap) : heap_(std::move(heap)) {}

  result<void *> allocate(std::size_t bytes, stream_ref on) override {
    return heap_->allocate(bytes, on);
  }
  status free(void *at) override { return heap_->free(at); }
  status record_use(void *at, stream_ref on) override { return heap_->record_use(at, on); }
  std::uint64_t committed_bytes() const override { return heap_->stats().total.committed; }
  std::uint64_t peak_committed_bytes() const override { return heap_->stats().committed_peak; }
  std::uint64_t moved_bytes() const override {
    const caching_allocator_stats now = heap_->stats();
    return now.pages_moved * now.page_bytes;
  }
  std::optional<std::uint64_t> host_bytes() const override { return heap_->stats().host_bytes; }
  std::optional<heap_snapshot> snapshot() const override {
    auto taken = snapshot_of(*heap_);
    return taken ? std::optional(std::move(*taken)) : std::nullopt;
  }

 private:
  std::unique_ptr<caching_allocator> heap_;
};

}  // namespace

result<std::unique_ptr<replay_target>> make_stillmap(const device &d, const target_options &o) {
  caching_allocator_options options;
  options.limit = o.limit;
  options.page_bytes = o.page_bytes;
  options.record_from_environment = o.record_from_environment;
  STILLMAP_ASSIGN_OR_RETURN(auto heap, caching_allocator::create(d, std::move(options)));
  if (o.history) STILLMAP_RETURN_IF_ERROR(heap->record_history());
  return std::make_unique<stillmap_target>(std::move(heap));
}

}  // namespace stillmap::replay
