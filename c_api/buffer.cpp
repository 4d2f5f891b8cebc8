// Growable buffers.
#include <memory>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/growable_buffer.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::c_api {

result<buffer_options> options_of(const device &d, const stillmap_buffer_options *given) {
  STILLMAP_ASSIGN_OR_RETURN(const auto o, read_struct(given));
  STILLMAP_RETURN_IF_ERROR(
      check_choice(o.exportable, STILLMAP_EXPORTABLE_FABRIC, "no such stillmap_exportable"));
  buffer_options options;
  options.reserve_bytes = o.reserve_bytes;
  options.tag = text_of(o.tag);
  options.hint = device_address(o.hint);
  STILLMAP_ASSIGN_OR_RETURN(options.peer_devices, ordinals_of(o.peer_devices, o.peer_device_count));
  options.map_ahead_bytes = o.map_ahead_bytes;
  if (o.exportable != STILLMAP_EXPORTABLE_NONE) {
    page_pool_options pool;
    pool.exportable = static_cast<handle_type>(o.exportable);
    STILLMAP_ASSIGN_OR_RETURN(auto made, page_pool::create(d, pool));
    options.pools.push_back(std::move(made));
  }
  return options;
}

namespace {

result<growable_buffer *> find_buffer(const stillmap_buffer *handle) noexcept {
  return find<growable_buffer>(handle, handle_kind::buffer);
}

// act(buffer) as the function with this name.
template <class Act>
stillmap_status with_buffer(const char *operation, const stillmap_buffer *handle,
                            Act act) noexcept {
  return enter(operation, [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(growable_buffer *const b, find_buffer(handle));
    return act(*b);
  });
}

template <class Make>
stillmap_status make_buffer(const char *operation, stillmap_buffer **made, Make make) noexcept {
  return create(operation, handle_kind::buffer, made,
                [&]() -> result<std::unique_ptr<growable_buffer>> {
                  STILLMAP_ASSIGN_OR_RETURN(auto b, make());
                  return std::make_unique<growable_buffer>(std::move(b));
                });
}

status check_host_memory(const void *host, std::size_t bytes) noexcept {
  return host != nullptr || bytes == 0 ? status{} : missing("the host memory is NULL");
}

}  // namespace
}  // namespace stillmap::c_api

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_buffer_create(stillmap_device *device,
                                       const stillmap_buffer_options *options,
                                       stillmap_buffer **buffer) noexcept {
  return make_buffer("stillmap_buffer_create", buffer, [&]() -> result<growable_buffer> {
    STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
    STILLMAP_ASSIGN_OR_RETURN(auto with, options_of(*d, options));
    return growable_buffer::create(*d, std::move(with));
  });
}

stillmap_status stillmap_buffer_destroy(stillmap_buffer *buffer) noexcept {
  return destroy<growable_buffer>("stillmap_buffer_destroy", buffer, handle_kind::buffer);
}

stillmap_status stillmap_buffer_resize(stillmap_buffer *buffer, size_t bytes) noexcept {
  return with_buffer("stillmap_buffer_resize", buffer,
                     [&](growable_buffer &b) { return b.resize(bytes); });
}

stillmap_status stillmap_buffer_resize_on_stream(stillmap_buffer *buffer, size_t bytes,
                                                 stillmap_stream stream) noexcept {
  return with_buffer("stillmap_buffer_resize_on_stream", buffer,
                     [&](growable_buffer &b) { return b.resize(bytes, stream); });
}

stillmap_status stillmap_buffer_reserve(stillmap_buffer *buffer, size_t bytes) noexcept {
  return with_buffer("stillmap_buffer_reserve", buffer,
                     [&](growable_buffer &b) { return b.reserve(bytes); });
}

stillmap_status stillmap_buffer_reserve_on_stream(stillmap_buffer *buffer, size_t bytes,
                                                  stillmap_stream stream) noexcept {
  return with_buffer("stillmap_buffer_reserve_on_stream", buffer,
                     [&](growable_buffer &b) { return b.reserve(bytes, stream); });
}

stillmap_status stillmap_buffer_shrink_to_fit(stillmap_buffer *buffer) noexcept {
  return with_buffer("stillmap_buffer_shrink_to_fit", buffer,
                     [](growable_buffer &b) { return b.shrink_to_fit(); });
}

stillmap_status stillmap_buffer_commit(stillmap_buffer *buffer, size_t offset,
                                       size_t bytes) noexcept {
  return with_buffer("stillmap_buffer_commit", buffer,
                     [&](growable_buffer &b) { return b.commit(offset, bytes); });
}

stillmap_status stillmap_buffer_commit_on_stream(stillmap_buffer *buffer, size_t offset,
                                                 size_t bytes, stillmap_stream stream) noexcept {
  return with_buffer("stillmap_buffer_commit_on_stream", buffer,
                     [&](growable_buffer &b) { return b.commit(offset, bytes, stream); });
}

stillmap_status stillmap_buffer_decommit(stillmap_buffer *buffer, size_t offset,
                                         size_t bytes) noexcept {
  return with_buffer("stillmap_buffer_decommit", buffer,
                     [&](growable_buffer &b) { return b.decommit(offset, bytes); });
}

void *stillmap_buffer_address(stillmap_buffer *buffer) noexcept {
  void *address = nullptr;
  with_buffer("stillmap_buffer_address", buffer, [&](growable_buffer &b) -> status {
    address = b.data();
    return {};
  });
  return address;
}

size_t stillmap_buffer_size(stillmap_buffer *buffer) noexcept {
  size_t bytes = 0;
  with_buffer("stillmap_buffer_size", buffer, [&](growable_buffer &b) -> status {
    bytes = b.size();
    return {};
  });
  return bytes;
}

size_t stillmap_buffer_capacity(stillmap_buffer *buffer) noexcept {
  size_t bytes = 0;
  with_buffer("stillmap_buffer_capacity", buffer, [&](growable_buffer &b) -> status {
    bytes = b.capacity();
    return {};
  });
  return bytes;
}

stillmap_status stillmap_buffer_get_info(stillmap_buffer *buffer,
                                         stillmap_buffer_info *info) noexcept {
  return with_buffer("stillmap_buffer_get_info", buffer, [&](growable_buffer &b) -> status {
    STILLMAP_RETURN_IF_ERROR(check_struct(info, sizeof *info));
    const buffer_stats stats = b.stats();
    stillmap_buffer_info all{};
    all.address = b.data();
    all.size = b.size();
    all.capacity = b.capacity();
    all.reserved_bytes = b.reserved();
    all.mapped_bytes = b.mapped_bytes();
    all.page_bytes = b.page_bytes();
    all.generation = b.generation();
    all.relocations = stats.relocations;
    all.in_place = b.in_place();
    write_struct(info, all);
    return {};
  });
}

stillmap_status stillmap_buffer_copy_from_host(stillmap_buffer *buffer, size_t offset,
                                               const void *from, size_t bytes,
                                               stillmap_stream stream) noexcept {
  return with_buffer("stillmap_buffer_copy_from_host", buffer, [&](growable_buffer &b) -> status {
    STILLMAP_RETURN_IF_ERROR(check_host_memory(from, bytes));
    return b.copy_from_host(offset, from, bytes, stream);
  });
}

stillmap_status stillmap_buffer_copy_to_host(stillmap_buffer *buffer, size_t offset, void *to,
                                             size_t bytes, stillmap_stream stream) noexcept {
  return with_buffer("stillmap_buffer_copy_to_host", buffer, [&](growable_buffer &b) -> status {
    STILLMAP_RETURN_IF_ERROR(check_host_memory(to, bytes));
    return b.copy_to_host(to, offset, bytes, stream);
  });
}

stillmap_status stillmap_buffer_alias(stillmap_buffer *buffer, size_t offset, size_t bytes,
                                      size_t times, stillmap_buffer **alias) noexcept {
  return make_buffer("stillmap_buffer_alias", alias, [&]() -> result<growable_buffer> {
    STILLMAP_ASSIGN_OR_RETURN(growable_buffer *const b, find_buffer(buffer));
    return b->alias(offset, bytes, times);
  });
}

stillmap_status stillmap_buffer_fork(stillmap_buffer *buffer, stillmap_buffer **copy) noexcept {
  return make_buffer("stillmap_buffer_fork", copy, [&]() -> result<growable_buffer> {
    STILLMAP_ASSIGN_OR_RETURN(growable_buffer *const b, find_buffer(buffer));
    return b->fork();
  });
}

stillmap_status stillmap_buffer_make_writable(stillmap_buffer *buffer, size_t offset, size_t bytes,
                                              stillmap_stream stream) noexcept {
  return with_buffer("stillmap_buffer_make_writable", buffer,
                     [&](growable_buffer &b) { return b.make_writable(offset, bytes, stream); });
}
