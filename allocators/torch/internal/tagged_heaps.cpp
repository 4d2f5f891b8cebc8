#include "stillmap/allocators/torch/internal/tagged_heaps.h"

#include <array>
#include <memory>
#include <utility>

#include "stillmap/allocators/torch/internal/exact_segments.h"
#include "stillmap/allocators/torch/internal/last_error.h"
#include "stillmap/allocators/torch/internal/pool_refusal.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::torch_plugin {
namespace {

struct tag_slot {
  std::string tag;  // under tag_table::lock until heaps is set; constant from then on
  std::atomic<torch_heaps *> heaps{nullptr};  // set once
};

// Never destroyed: see torch_heaps.
struct tag_table {
  fork_watch born;
  mutex lock;
  std::size_t used STILLMAP_GUARDED_BY(lock) = 0;
  std::array<tag_slot, most_tags> slots;
};

tag_table &table_of_tags() {
  static tag_table *const made = new tag_table;
  return *made;
}

void *allocate_tagged(std::size_t slot, ssize_t bytes, int ordinal, CUstream_st *s) noexcept {
  const tag_slot &of = table_of_tags().slots[slot];
  torch_heaps &heaps = *of.heaps.load(std::memory_order_acquire);
  if (bytes <= 0) return nullptr;
  const std::size_t wanted = exact_request(static_cast<std::size_t>(bytes));
  const auto open_heap = [&] {
    const operation_scope scope("stillmap.torch.pool");
    return heaps.open(ordinal);
  };
  const auto block =
      open_heap().and_then([&](caching_allocator *heap) { return heap->allocate(wanted, s); });
  if (block) {
    note_exact(*block, wanted);
    note_served();
    return *block;
  }
  remember_error(block.error());
  note_refusal(of.tag, ordinal, block.error());
  return nullptr;
}

void free_tagged(std::size_t slot, void *block, int ordinal, CUstream_st *s) noexcept {
  const torch_heaps &heaps = *table_of_tags().slots[slot].heaps.load(std::memory_order_acquire);
  caching_allocator *const heap = heaps.known(ordinal);
  if (block == nullptr || heap == nullptr || heaps.forked()) return;
  if (const status freed = heap->free(block, s); !freed) {
    report_error(freed.error());
    return;
  }
  if (forget_exact(block) && releasing_exact()) return;
  // PyTorch keeps free memory itself, and calls this when the device is to have it. While a stream
  // captures a graph it stays here.
  static_cast<void>(heap->empty_cache());
}

template <std::size_t Slot>
void *allocate_in_slot(ssize_t bytes, int device, CUstream_st *s) {
  return allocate_tagged(Slot, bytes, device, s);
}
template <std::size_t Slot>
void free_in_slot(void *block, ssize_t, int device, CUstream_st *s) {
  free_tagged(Slot, block, device, s);
}

template <std::size_t... Slot>
constexpr std::array<heap_functions, sizeof...(Slot)> functions_of(std::index_sequence<Slot...>) {
  return {{{&allocate_in_slot<Slot>, &free_in_slot<Slot>}...}};
}
constexpr auto slot_functions = functions_of(std::make_index_sequence<most_tags>());

std::size_t find_tag(const tag_table &all, const std::string &tag) STILLMAP_REQUIRES(all.lock) {
  std::size_t i = 0;
  while (i < all.used && all.slots[i].tag != tag) ++i;
  return i;
}

}  // namespace

result<heap_functions> functions_of_tag(const settings &given) {
  return with_host_memory("stillmap.torch.pool", [&]() -> result<heap_functions> {
    if (given.tag.empty()) return make_error(errc::invalid_argument, "the tag is empty");
    tag_table &all = table_of_tags();
    if (all.born.in_child()) {
      return make_error(errc::not_supported,
                        "the process was forked: CUDA does not work in a child");
    }
    const lock_guard lock(all.lock);
    const std::size_t i = find_tag(all, given.tag);
    if (i < all.used) return slot_functions[i];
    if (i == most_tags) {
      return make_error(errc::invalid_argument, "too many tags have a pool", i + 1, most_tags,
                        error_unit::items);
    }
    all.slots[i].tag = given.tag;
    settings sparing = given;
    sparing.soft_limit = 0;  // free pages serve a request before new ones are created
    all.slots[i].heaps.store(std::make_unique<torch_heaps>(std::move(sparing)).release(),
                             std::memory_order_release);
    ++all.used;
    return slot_functions[i];
  });
}

torch_heaps *heaps_of_tag(const std::string &tag) {
  tag_table &all = table_of_tags();
  const lock_guard lock(all.lock);
  const std::size_t i = find_tag(all, tag);
  return i < all.used ? all.slots[i].heaps.load(std::memory_order_acquire) : nullptr;
}

std::vector<torch_heaps *> heaps_of_tags() {
  tag_table &all = table_of_tags();
  const lock_guard lock(all.lock);
  std::vector<torch_heaps *> out;
  for (std::size_t i = 0; i < all.used; ++i) {
    if (auto *const heaps = all.slots[i].heaps.load(std::memory_order_acquire))
      out.push_back(heaps);
  }
  return out;
}

}  // namespace stillmap::torch_plugin
