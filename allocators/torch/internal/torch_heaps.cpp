#include "stillmap/allocators/torch/internal/torch_heaps.h"

#include <memory>

#include "stillmap/allocators/device_share.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::torch_plugin {
namespace {

std::atomic<torch_heaps *> &heaps_slot() {
  static constinit std::atomic<torch_heaps *> all{nullptr};
  return all;
}

constinit std::atomic<heap_observer> of_new_heaps{nullptr};

// The heaps that are there, or these.
torch_heaps &enter_heaps(std::unique_ptr<torch_heaps> made) {
  torch_heaps *known = nullptr;
  if (heaps_slot().compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) {
    return *made.release();
  }
  return *known;
}

}  // namespace

void observe_new_heaps(heap_observer observer) noexcept {
  of_new_heaps.store(observer, std::memory_order_release);
}

result<caching_allocator *> torch_heaps::open(int ordinal) {
  if (caching_allocator *const heap = known(ordinal)) return heap;
  auto made = with_host_memory([&] { return create(ordinal); });
  const heap_observer tell = of_new_heaps.load(std::memory_order_acquire);
  if (made && tell != nullptr) tell(ordinal);
  return made;
}

result<caching_allocator *> torch_heaps::create(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= most_devices) {
    return make_error(errc::invalid_argument, "there is no such device",
                      static_cast<std::uint64_t>(ordinal));
  }
  // Before the lock, which a thread of the parent may have held at the fork.
  if (forked()) {
    return make_error(errc::not_supported, "the process was forked: CUDA does not work in a child");
  }
  std::atomic<caching_allocator *> &place = of_device_[static_cast<std::size_t>(ordinal)];
  const lock_guard lock(making_);
  if (caching_allocator *const made = place.load(std::memory_order_relaxed)) return made;
  settings say;
  if (given_) {
    say = *given_;
  } else {
    STILLMAP_ASSIGN_OR_RETURN(say, read_settings());
  }
  STILLMAP_ASSIGN_OR_RETURN(const device d, device::open(ordinal));
  caching_allocator_options options;
  options.limit = say.limit;
  options.soft_limit = say.soft_limit;
  options.page_bytes = say.page_bytes;
  options.tag = say.tag;
  if (say.exportable) options.exportable = handle_type::posix_fd;
  if (!say.share.name.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(options.quota, share_device(say.share, d));
  }
  if (say.peers) options.peer_devices = d.capabilities().peers;
  STILLMAP_ASSIGN_OR_RETURN(auto made, caching_allocator::create(d, std::move(options)));
  limit_.store(say.limit, std::memory_order_relaxed);
  place.store(made.get(), std::memory_order_release);
  return made.release();
}

torch_heaps *known_heaps() noexcept {
  return heaps_slot().load(std::memory_order_acquire);
}

// Needs no lock and no destructor; see torch_heaps.
torch_heaps &all_heaps() {
  if (torch_heaps *const known = known_heaps()) return *known;
  return enter_heaps(std::make_unique<torch_heaps>());
}

status configure_heaps(const settings &given) {
  const operation_scope scope("stillmap.torch.use");
  auto made = std::make_unique<torch_heaps>(given);
  const torch_heaps *const mine = made.get();
  if (&enter_heaps(std::move(made)) == mine) return {};
  return make_error(errc::busy, "PyTorch has allocated memory with Stillmap already");
}

}  // namespace stillmap::torch_plugin
