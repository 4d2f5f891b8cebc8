// Handles of the C API: numbers that name a slot of a table and its generation, never addresses. So a handle that was
// destroyed, is of another type or is no handle at all is refused without being dereferenced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "stillmap/c_api/internal/entry.h"

namespace stillmap::c_api {

enum class handle_kind : std::uint8_t {
  none,
  device,
  buffer,
  vector,
  allocator,
  quota,
  suspender,
  restored,
  control,
  stop,
};

// A slot for a handle, taken before the object is made, so that naming the object cannot fail. Gives the slot back
// unless it was named.
class handle_slot {
 public:
  // Errors: out_of_memory (of the host; or 2^20 handles exist). Cost: a lock.
  static result<handle_slot> take() noexcept;
  handle_slot(handle_slot &&other) noexcept : index_(std::exchange(other.index_, none)) {}
  handle_slot &operator=(handle_slot &&) = delete;
  ~handle_slot();

  // The handle of the object from now on.
  void *name(handle_kind kind, void *object) &&noexcept;

 private:
  static constexpr std::size_t none = SIZE_MAX;
  explicit handle_slot(std::size_t index) : index_(index) {}
  std::size_t index_;
};

// The object of a handle of this kind. Errors: invalid_argument. Cost: three loads.
result<void *> find_object(const void *handle, handle_kind kind) noexcept;
// The same, and the handle is invalid from now on. Of two threads, one gets it.
result<void *> take_object(const void *handle, handle_kind kind) noexcept;

template <class Object>
result<Object *> find(const void *handle, handle_kind kind) noexcept {
  auto found = find_object(handle, kind);
  if (!found) return tl::unexpected(found.error());
  return static_cast<Object *>(*found);
}

// Ends the object of a handle; NULL is ignored. In a forked child it does nothing: the object is the parent's.
template <class Object>
stillmap_status destroy(const char *operation, const void *handle, handle_kind kind) noexcept {
  if (handle == nullptr || forked_after_use()) return STILLMAP_OK;
  return enter(operation, [&]() -> status {
    auto taken = take_object(handle, kind);
    if (!taken) return tl::unexpected(taken.error());
    delete static_cast<Object *>(*taken);
    return {};
  });
}

// Makes an object, by make() -> result<std::unique_ptr<Object>>, and its handle.
template <class Handle, class Make>
stillmap_status create(const char *operation, handle_kind kind, Handle **handle,
                       Make &&make) noexcept {
  clear_output(handle);
  return enter(operation, [&]() -> status {
    if (handle == nullptr) return missing("the place for the handle is NULL");
    if (status used = note_use(); !used) return used;
    auto slot = handle_slot::take();
    if (!slot) return tl::unexpected(slot.error());
    auto made = std::forward<Make>(make)();
    if (!made) return tl::unexpected(made.error());
    *handle = static_cast<Handle *>(std::move(*slot).name(kind, made->release()));
    return {};
  });
}

}  // namespace stillmap::c_api
