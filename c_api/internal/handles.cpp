#include "stillmap/c_api/internal/handles.h"

#include <array>
#include <atomic>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::c_api {
namespace {

// A handle, from its lowest bit: 20 bits of index, 32 of generation, 12 that no address has.
constexpr unsigned index_bits = 20, generation_bits = 32;
constexpr std::uint64_t mark = 0x5a5;
constexpr std::size_t chunk_slots = 1024,
                      most_chunks = (std::size_t{1} << index_bits) / chunk_slots;

// `state` is the generation in the high half and the kind in the low one.
struct slot {
  std::atomic<std::uint64_t> state{0};
  std::atomic<void *> object{nullptr};
  std::size_t next_free = 0;  // under the table's mutex
};
using chunk = std::array<slot, chunk_slots>;

struct handle_table {
  // Slots stay where they are, so that they are found without the lock. Never freed.
  std::array<std::atomic<chunk *>, most_chunks> chunks{};
  stillmap::mutex mutex;
  std::size_t used STILLMAP_GUARDED_BY(mutex) = 0;  // slots that were taken at least once
  std::size_t free STILLMAP_GUARDED_BY(mutex) = SIZE_MAX;
};
handle_table &table() {
  static undying<handle_table> all;
  return *all;
}

slot *slot_at(std::size_t index) {
  chunk *const of = table().chunks[index / chunk_slots].load(std::memory_order_acquire);
  return of != nullptr ? &(*of)[index % chunk_slots] : nullptr;
}

constexpr std::uint64_t state_of(std::uint64_t generation, handle_kind kind) {
  return generation << 32 | static_cast<std::uint64_t>(kind);
}

struct parsed_handle {
  slot *at;
  std::uint64_t state;  // that the slot has while the handle is valid
};

result<parsed_handle> parse(const void *handle, handle_kind kind) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  const auto index = static_cast<std::size_t>(value & ((std::uint64_t{1} << index_bits) - 1));
  const std::uint64_t generation = value >> index_bits & UINT32_MAX;
  if (handle == nullptr) return missing("the handle is NULL");
  slot *const at = value >> (index_bits + generation_bits) == mark ? slot_at(index) : nullptr;
  const std::uint64_t valid = state_of(generation, kind);
  if (at == nullptr || at->state.load(std::memory_order_acquire) != valid) {
    return make_error(errc::invalid_argument,
                      "no such handle: it was destroyed, is of another type, or never was one",
                      value, 0, error_unit::address);
  }
  return parsed_handle{at, valid};
}

void give_back(std::size_t index) noexcept {
  handle_table &t = table();
  const lock_guard lock(t.mutex);
  slot_at(index)->next_free = t.free;
  t.free = index;
}

}  // namespace

result<handle_slot> handle_slot::take() noexcept {
  handle_table &t = table();
  const lock_guard lock(t.mutex);
  if (t.free != SIZE_MAX) {
    const std::size_t index = t.free;
    t.free = slot_at(index)->next_free;
    return handle_slot(index);
  }
  const std::size_t index = t.used;
  if (index == most_chunks * chunk_slots) {
    return make_error(errc::out_of_memory, "too many handles exist", index, index,
                      error_unit::items);
  }
  if (index % chunk_slots == 0) {
    auto *const added = new (std::nothrow) chunk;
    if (added == nullptr) return host_out_of_memory();
    t.chunks[index / chunk_slots].store(added, std::memory_order_release);
  }
  ++t.used;
  return handle_slot(index);
}

handle_slot::~handle_slot() {
  if (index_ != none) give_back(index_);
}

void *handle_slot::name(handle_kind kind, void *object) &&noexcept {
  const std::size_t index = std::exchange(index_, none);
  slot &s = *slot_at(index);
  const std::uint64_t generation = s.state.load(std::memory_order_relaxed) >> 32;
  s.object.store(object, std::memory_order_relaxed);
  s.state.store(state_of(generation, kind), std::memory_order_release);
  return reinterpret_cast<void *>(mark << (index_bits + generation_bits) |
                                  generation << index_bits | index);
}

result<void *> find_object(const void *handle, handle_kind kind) noexcept {
  const auto parsed = parse(handle, kind);
  if (!parsed) return tl::unexpected(parsed.error());
  return parsed->at->object.load(std::memory_order_relaxed);
}

result<void *> take_object(const void *handle, handle_kind kind) noexcept {
  auto parsed = parse(handle, kind);
  if (!parsed) return tl::unexpected(parsed.error());
  void *const object = parsed->at->object.load(std::memory_order_relaxed);
  const std::uint64_t next = ((parsed->state >> 32) + 1) & UINT32_MAX;
  std::uint64_t valid = parsed->state;
  if (!parsed->at->state.compare_exchange_strong(valid, state_of(next, handle_kind::none))) {
    return make_error(errc::invalid_argument, "another thread destroys this handle",
                      reinterpret_cast<std::uintptr_t>(handle), 0, error_unit::address);
  }
  give_back(reinterpret_cast<std::uintptr_t>(handle) & ((std::uint64_t{1} << index_bits) - 1));
  return object;
}

}  // namespace stillmap::c_api
