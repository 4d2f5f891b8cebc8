// Vectors of elements of one size: a device_vector of bytes, with positions and counts in elements.
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/device_vector.h"

namespace stillmap::c_api {
namespace {

struct vector_object {
  device_vector<std::byte> bytes;
  std::size_t element_bytes;

  std::size_t size() const { return bytes.size() / element_bytes; }
  // Saturating: too many elements are refused as too large.
  std::size_t bytes_of(std::size_t count) const {
    return count > SIZE_MAX / element_bytes ? SIZE_MAX : count * element_bytes;
  }
  status check(std::size_t position, std::size_t count) const {
    if (position <= size() && count <= size() - position) return {};
    const std::size_t end = count > SIZE_MAX - position ? SIZE_MAX : position + count;
    return make_error(errc::invalid_argument, "past the end of the vector", end, size(),
                      error_unit::items);
  }
  result<std::span<const std::byte>> host(const void *elements, std::size_t count) const {
    if (elements == nullptr && count != 0) return missing("the elements are NULL");
    if (count > PTRDIFF_MAX / element_bytes) {
      return make_error(errc::invalid_argument, "the host has no array of so many elements", count,
                        PTRDIFF_MAX / element_bytes, error_unit::items);
    }
    return std::span(static_cast<const std::byte *>(elements), count * element_bytes);
  }
};

template <class Act>
stillmap_status with_vector(const char *operation, const stillmap_vector *handle,
                            Act act) noexcept {
  return enter(operation, [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(vector_object *const v,
                              find<vector_object>(handle, handle_kind::vector));
    return act(*v);
  });
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_vector_create(stillmap_device *device, size_t element_bytes,
                                       const stillmap_buffer_options *options,
                                       stillmap_stream stream, stillmap_vector **vector) noexcept {
  return create(
      "stillmap_vector_create", handle_kind::vector, vector,
      [&]() -> result<std::unique_ptr<vector_object>> {
        STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
        if (element_bytes == 0) return missing("elements of 0 bytes");
        vector_options with;
        STILLMAP_ASSIGN_OR_RETURN(with.buffer, options_of(*d, options));
        STILLMAP_ASSIGN_OR_RETURN(auto made,
                                  device_vector<std::byte>::create(*d, std::move(with), stream));
        return std::unique_ptr<vector_object>(new vector_object{std::move(made), element_bytes});
      });
}

stillmap_status stillmap_vector_destroy(stillmap_vector *vector) noexcept {
  return destroy<vector_object>("stillmap_vector_destroy", vector, handle_kind::vector);
}

stillmap_status stillmap_vector_append(stillmap_vector *vector, const void *elements,
                                       size_t count) noexcept {
  return with_vector("stillmap_vector_append", vector, [&](vector_object &v) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const auto from, v.host(elements, count));
    return v.bytes.append(from);
  });
}

stillmap_status stillmap_vector_append_from_device(stillmap_vector *vector, const void *elements,
                                                   size_t count) noexcept {
  return with_vector("stillmap_vector_append_from_device", vector, [&](vector_object &v) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const auto from, v.host(elements, count));
    return v.bytes.append_from_device(from.data(), from.size());
  });
}

stillmap_status stillmap_vector_insert(stillmap_vector *vector, size_t position,
                                       const void *elements, size_t count) noexcept {
  return with_vector("stillmap_vector_insert", vector, [&](vector_object &v) -> status {
    STILLMAP_RETURN_IF_ERROR(v.check(position, 0));
    STILLMAP_ASSIGN_OR_RETURN(const auto from, v.host(elements, count));
    return v.bytes.insert(v.bytes_of(position), from);
  });
}

stillmap_status stillmap_vector_erase(stillmap_vector *vector, size_t position,
                                      size_t count) noexcept {
  return with_vector("stillmap_vector_erase", vector, [&](vector_object &v) -> status {
    STILLMAP_RETURN_IF_ERROR(v.check(position, count));
    return v.bytes.erase(v.bytes_of(position), v.bytes_of(count));
  });
}

stillmap_status stillmap_vector_resize(stillmap_vector *vector, size_t count) noexcept {
  return with_vector("stillmap_vector_resize", vector,
                     [&](vector_object &v) { return v.bytes.resize(v.bytes_of(count)); });
}

stillmap_status stillmap_vector_reserve(stillmap_vector *vector, size_t count) noexcept {
  return with_vector("stillmap_vector_reserve", vector,
                     [&](vector_object &v) { return v.bytes.reserve(v.bytes_of(count)); });
}

stillmap_status stillmap_vector_shrink_to_fit(stillmap_vector *vector) noexcept {
  return with_vector("stillmap_vector_shrink_to_fit", vector,
                     [](vector_object &v) { return v.bytes.shrink_to_fit(); });
}

size_t stillmap_vector_size(stillmap_vector *vector) noexcept {
  size_t count = 0;
  with_vector("stillmap_vector_size", vector, [&](vector_object &v) -> status {
    count = v.size();
    return {};
  });
  return count;
}

size_t stillmap_vector_capacity(stillmap_vector *vector) noexcept {
  size_t count = 0;
  with_vector("stillmap_vector_capacity", vector, [&](vector_object &v) -> status {
    count = v.bytes.capacity() / v.element_bytes;
    return {};
  });
  return count;
}

void *stillmap_vector_data(stillmap_vector *vector) noexcept {
  void *data = nullptr;
  with_vector("stillmap_vector_data", vector, [&](vector_object &v) -> status {
    data = v.bytes.address().pointer();  // nothing is staged: append() waits for its copy
    return {};
  });
  return data;
}

stillmap_status stillmap_vector_copy_from_host(stillmap_vector *vector, size_t position,
                                               const void *elements, size_t count) noexcept {
  return with_vector("stillmap_vector_copy_from_host", vector, [&](vector_object &v) -> status {
    STILLMAP_RETURN_IF_ERROR(v.check(position, count));
    STILLMAP_ASSIGN_OR_RETURN(const auto from, v.host(elements, count));
    return v.bytes.copy_from_host(from, v.bytes_of(position));
  });
}

stillmap_status stillmap_vector_copy_to_host(stillmap_vector *vector, size_t position,
                                             void *elements, size_t count) noexcept {
  return with_vector("stillmap_vector_copy_to_host", vector, [&](vector_object &v) -> status {
    STILLMAP_RETURN_IF_ERROR(v.check(position, count));
    STILLMAP_ASSIGN_OR_RETURN(const auto to, v.host(elements, count));
    return v.bytes.copy_to_host({static_cast<std::byte *>(elements), to.size()},
                                v.bytes_of(position));
  });
}

stillmap_status stillmap_vector_synchronize(stillmap_vector *vector) noexcept {
  return with_vector("stillmap_vector_synchronize", vector,
                     [](vector_object &v) { return v.bytes.synchronize(); });
}
