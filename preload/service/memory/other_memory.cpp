// Memory that the driver serves: what the program maps itself, managed memory and arrays.
#include <algorithm>

#include "preload/service/ipc/imported_blocks.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/serve_by_driver.h"

namespace stillmap::preload {
namespace {

// CUmemAllocationProp up to what is read. Source: cuda.h.
struct allocation_properties {
  number type, handle_types;
  location place;
};
constexpr number on_device = 1;  // CU_MEM_LOCATION_TYPE_DEVICE

// CUDA_ARRAY_DESCRIPTOR and CUDA_ARRAY3D_DESCRIPTOR. Source: cuda.h.
struct plane_descriptor {
  word width, height;
  number format, channels;
};
struct array_descriptor {
  word width, height, depth;
  number format, channels, flags;
};
constexpr number without_memory =
    0x40 | 0x80;                           // CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING
constexpr number in_layers = 0x01 | 0x04;  // CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_CUBEMAP

// Bytes of an element; 0: not known, as of packed and compressed formats.
word element_bytes(number format, number channels) noexcept {
  // CUarray_format: integers, half and float, and normalised ones, whose channels are part of the format.
  constexpr number by_channel[][2] = {{0x01, 1}, {0x02, 2}, {0x03, 4}, {0x08, 1},
                                      {0x09, 2}, {0x0a, 4}, {0x10, 2}, {0x20, 4}};
  for (const auto &[known, bytes] : by_channel) {
    if (format == known) return word{bytes} * channels;
  }
  if (format < 0xc0 || format > 0xcb) return 0;
  return word{(format - 0xc0) / 3 % 2 == 0 ? 1U : 2U} * channels;
}

// As the descriptor says, without what the driver adds; 0: not known, or none.
word bytes_of(array_descriptor d, number levels) noexcept {
  if ((d.flags & without_memory) != 0 || levels > 64) return 0;
  word sum = 0;
  for (number i = 0; i < levels; ++i) {
    word level = element_bytes(d.format, d.channels);
    for (const word extent : {d.width, d.height, d.depth}) {
      if (__builtin_mul_overflow(level, std::max<word>(extent, 1), &level)) return 0;
    }
    if (__builtin_add_overflow(sum, level, &sum)) return 0;
    d = {std::max<word>(d.width / 2, 1),
         std::max<word>(d.height / 2, 1),
         (d.flags & in_layers) != 0 ? d.depth : std::max<word>(d.depth / 2, 1),
         d.format,
         d.channels,
         d.flags};
  }
  return sum;
}

word bytes_of(const plane_descriptor &d, number levels) noexcept {
  return bytes_of(array_descriptor{d.width, d.height, 0, d.format, d.channels, 0}, levels);
}

// Without a context, the driver reads no descriptor.
template <class Descriptor, class Call>
driver_code create_array(held_by kind, word array, word descriptor, number levels,
                         Call call) noexcept {
  const current_place place = array != 0 && descriptor != 0 ? current() : current_place();
  const word bytes =
      place.device >= 0 ? bytes_of(*reinterpret_cast<const Descriptor *>(descriptor), levels) : 0;
  return allocate_by_driver(place, kind, array, bytes, passed::arrays, call);
}

// Where the memory of cuMemCreate is to be. Without cuInit, the driver reads no properties.
current_place place_of(word properties) noexcept {
  number count = 0;
  if (pass_on<function::cuDeviceGetCount>(reinterpret_cast<word>(&count)) != code::success)
    return {};
  const location &l = reinterpret_cast<const allocation_properties *>(properties)->place;
  return {l.type == on_device && l.id < count ? static_cast<int>(l.id) : -1};
}

}  // namespace

driver_code serve(numbered<function::cuMemAllocManaged>, word at, word bytes,
                  number flags) noexcept {
  const bool legal = at != 0 && (flags == 1 || flags == 2);  // attached globally, or to the host
  return allocate_by_driver(legal ? current() : current_place(), held_by::address, at, bytes,
                            passed::managed,
                            [&] { return pass_on<function::cuMemAllocManaged>(at, bytes, flags); });
}

driver_code serve(numbered<function::cuMemCreate>, word handle, word bytes, word properties,
                  word flags) noexcept {
  const bool legal = handle != 0 && bytes != 0 && properties != 0 && flags == 0;
  return allocate_by_driver(
      legal ? place_of(properties) : current_place(), held_by::handle, handle, bytes,
      passed::own_mappings,
      [&] { return pass_on<function::cuMemCreate>(handle, bytes, properties, flags); });
}
driver_code serve(numbered<function::cuMemRelease>, word handle) noexcept {
  return free_by_driver(served_memory::take_out(held_by::handle, handle),
                        [&] { return pass_on<function::cuMemRelease>(handle); });
}
driver_code serve(numbered<function::cuMemMap>, word at, word bytes, word offset, word handle,
                  word flags) noexcept {
  auto mapped = served_memory::of_handle(handle);
  const driver_code result = pass_on<function::cuMemMap>(at, bytes, offset, handle, flags);
  if (result == code::success)
    served_memory::add(held_by::mapping, at, {std::move(mapped), 0, bytes});
  note_work();
  return result;
}
driver_code serve(numbered<function::cuMemUnmap>, word at, word bytes) noexcept {
  return free_by_driver(served_memory::take_out_mappings(at, bytes),
                        [&] { return pass_on<function::cuMemUnmap>(at, bytes); });
}
// What the allocator has mapped is to the program no memory of cuMemCreate, whose pages it could share.
driver_code serve(numbered<function::cuMemRetainAllocationHandle>, word handle, word at) noexcept {
  if (heaps::owner(at) != nullptr || imported_blocks::find(at)) return code::invalid_value;
  auto mapped = served_memory::mapped_at(at);
  const driver_code result = pass_on<function::cuMemRetainAllocationHandle>(handle, at);
  if (result == code::success) {
    served_memory::add(held_by::handle, *reinterpret_cast<const word *>(handle),
                       {std::move(mapped)});
  }
  return result;
}

driver_code serve(numbered<function::cuArrayCreate_v2>, word array, word descriptor) noexcept {
  return create_array<plane_descriptor>(held_by::array, array, descriptor, 1, [&] {
    return pass_on<function::cuArrayCreate_v2>(array, descriptor);
  });
}
driver_code serve(numbered<function::cuArray3DCreate_v2>, word array, word descriptor) noexcept {
  return create_array<array_descriptor>(held_by::array, array, descriptor, 1, [&] {
    return pass_on<function::cuArray3DCreate_v2>(array, descriptor);
  });
}
driver_code serve(numbered<function::cuMipmappedArrayCreate>, word array, word descriptor,
                  number levels) noexcept {
  return create_array<array_descriptor>(held_by::mipmapped_array, array, descriptor, levels, [&] {
    return pass_on<function::cuMipmappedArrayCreate>(array, descriptor, levels);
  });
}
driver_code serve(numbered<function::cuArrayDestroy>, word array) noexcept {
  return free_by_driver(served_memory::take_out(held_by::array, array),
                        [&] { return pass_on<function::cuArrayDestroy>(array); });
}
driver_code serve(numbered<function::cuMipmappedArrayDestroy>, word array) noexcept {
  return free_by_driver(served_memory::take_out(held_by::mipmapped_array, array),
                        [&] { return pass_on<function::cuMipmappedArrayDestroy>(array); });
}

}  // namespace stillmap::preload
