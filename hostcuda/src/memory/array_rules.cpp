// Which formats, flags and extents an array may have.
#include <algorithm>
#include <iterator>

#include "hostcuda/src/device.h"
#include "hostcuda/src/memory/array.h"

namespace hostcuda {
namespace {

// Formats by number, so that older headers compile.
struct array_format {
  unsigned number;
  unsigned bytes;     // of a channel
  unsigned channels;  // 0: 1, 2 or 4, as the descriptor says
};
constexpr array_format kFormats[] = {
    {0x01, 1, 0}, {0x02, 2, 0}, {0x03, 4, 0},  // unsigned integers
    {0x08, 1, 0}, {0x09, 2, 0}, {0x0a, 4, 0},  // signed integers
    {0x10, 2, 0}, {0x20, 4, 0},                // half, float
    {0xc0, 1, 1}, {0xc1, 1, 2}, {0xc2, 1, 4},  // 8-bit unsigned, normalised
    {0xc3, 2, 1}, {0xc4, 2, 2}, {0xc5, 2, 4},  // 16-bit unsigned, normalised
    {0xc6, 1, 1}, {0xc7, 1, 2}, {0xc8, 1, 4},  // 8-bit signed, normalised
    {0xc9, 2, 1}, {0xca, 2, 2}, {0xcb, 2, 4},  // 16-bit signed, normalised
};

// Formats of <cuda.h> whose elements are not bytes of channels: packed, block-compressed, planar.
constexpr unsigned kUnservedFormats[][2] = {{0x50, 0x50}, {0x91, 0x9f}, {0xa1, 0xa9}, {0xb0, 0xb5}};

CUresult element_size(const CUDA_ARRAY3D_DESCRIPTOR &form, std::size_t *out) {
  const auto number = static_cast<unsigned>(form.Format);
  for (const auto &[first, last] : kUnservedFormats)
    if (number >= first && number <= last) return CUDA_ERROR_NOT_SUPPORTED;
  const auto *const f = std::find_if(std::begin(kFormats), std::end(kFormats),
                                     [&](const array_format &x) { return x.number == number; });
  if (f == std::end(kFormats)) return CUDA_ERROR_INVALID_VALUE;
  const unsigned channels = form.NumChannels;
  if (channels != 1 && channels != 2 && channels != 4) return CUDA_ERROR_INVALID_VALUE;
  if (f->channels != 0 && f->channels != channels) return CUDA_ERROR_INVALID_VALUE;
  *out = std::size_t{f->bytes} * channels;
  return CUDA_SUCCESS;
}

// The types of arrays, in the order of the tables below.
enum array_type { line, plane, volume, lines, planes, cube, cubes, no_array };

array_type type_of(const CUDA_ARRAY3D_DESCRIPTOR &form) {
  const bool layered = (form.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  if (form.Width == 0) return no_array;
  if ((form.Flags & CUDA_ARRAY3D_CUBEMAP) != 0) {
    if (form.Height != form.Width || form.Depth == 0 || form.Depth % 6 != 0) return no_array;
    if (!layered && form.Depth != 6) return no_array;
    return layered ? cubes : cube;
  }
  if (layered) {
    if (form.Depth == 0) return no_array;
    return form.Height == 0 ? lines : planes;
  }
  if (form.Depth != 0) return form.Height == 0 ? no_array : volume;
  return form.Height == 0 ? line : plane;
}

// The attributes that limit width, height and depth of each type; 0: no limit.
using limits = int[3];
constexpr limits kTexture[] = {
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 0,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 0,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS}};
constexpr limits kSurface[] = {
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, 0,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, 0,
     CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS}};
constexpr limits kAlternateVolume = {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE,
                                     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE,
                                     CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE};
constexpr limits kGather = {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH,
                            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT};
constexpr limits kMipmapped[] = {{CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH},
                                 {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH,
                                  CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT}};

bool within(const CUDA_ARRAY3D_DESCRIPTOR &form, const limits &of, CUdevice device) {
  const std::size_t extents[] = {form.Width, form.Height, form.Depth};
  for (int i = 0; i < 3; ++i) {
    if (of[i] == 0) continue;
    const int most = device_attribute(static_cast<CUdevice_attribute>(of[i]), device);
    if (most < 0 || extents[i] > static_cast<std::size_t>(most)) return false;
  }
  return true;
}

bool valid_extents(const CUDA_ARRAY3D_DESCRIPTOR &form, CUdevice device, bool mipmapped) {
  const array_type type = type_of(form);
  if (type == no_array) return false;
  const bool has_own_limit = mipmapped && (type == line || type == plane);
  const bool fits = within(form, has_own_limit ? kMipmapped[type] : kTexture[type], device) ||
                    (type == volume && within(form, kAlternateVolume, device));
  if (!fits) return false;
  if ((form.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0 && !within(form, kSurface[type], device))
    return false;
  if ((form.Flags & CUDA_ARRAY3D_TEXTURE_GATHER) != 0)
    return type == plane && within(form, kGather, device);
  return true;
}

// By number, as the formats. Sparse and deferred arrays get their memory from cuMemMapArrayAsync.
constexpr unsigned kServedFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST |
                                  CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
                                  CUDA_ARRAY3D_COLOR_ATTACHMENT;
constexpr unsigned kMappedLater = 0x40 | 0x80;

}  // namespace

CUresult check_array(const CUDA_ARRAY3D_DESCRIPTOR &form, CUdevice device, bool mipmapped,
                     std::size_t *element) {
  if ((form.Flags & ~(kServedFlags | kMappedLater)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((form.Flags & kMappedLater) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult r = element_size(form, element); r != CUDA_SUCCESS) return r;
  return valid_extents(form, device, mipmapped) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace hostcuda
