// CUDA arrays and mipmapped arrays: the driver's, with channel descriptors for formats.
#include "hostcuda/cudart/src/array.h"

namespace cudart {
namespace {

// The formats of the driver by number, so that older headers compile.
constexpr unsigned kHalf = 0x10, kFloat = 0x20;
constexpr unsigned kFirstNormalised =
    0xc0;  // 1, 2, 4 channels of 8 and of 16 bits; then signed ones
constexpr int kFirstNormalisedKind = 5, kLastNormalisedKind = 16;

struct array_format {
  CUarray_format format;
  unsigned channels;
};

// The number of channels; 0 if there is no such element. All have the size of the first one.
unsigned channels_of(const cudaChannelFormatDesc &d) {
  const int bits = d.x;
  if (bits <= 0) return 0;
  if (d.y == 0 && d.z == 0 && d.w == 0) return 1;
  if (d.y == bits && d.z == 0 && d.w == 0) return 2;
  return d.y == bits && d.z == bits && d.w == bits ? 4 : 0;
}

// 0, 1 or 2 for 8, 16 or 32 bits; else -1.
int step_of(int bits) {
  return bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : -1;
}

cudaError_t format_of(const cudaChannelFormatDesc &d, array_format *out) {
  const int kind = static_cast<int>(d.f);
  const bool compressed_or_planar = kind == 4 || (kind > kLastNormalisedKind && kind <= 31);
  if (compressed_or_planar) return cudaErrorNotSupported;
  const unsigned channels = channels_of(d);
  const int step = step_of(d.x);
  if (channels == 0 || step < 0) return cudaErrorInvalidChannelDescriptor;
  unsigned number = 0;
  if (kind == cudaChannelFormatKindUnsigned) {
    number = 0x01U + static_cast<unsigned>(step);
  } else if (kind == cudaChannelFormatKindSigned) {
    number = 0x08U + static_cast<unsigned>(step);
  } else if (kind == cudaChannelFormatKindFloat && step > 0) {
    number = step == 1 ? kHalf : kFloat;
  } else if (kind >= kFirstNormalisedKind && kind <= kLastNormalisedKind) {
    const auto nth = static_cast<unsigned>(kind - kFirstNormalisedKind);
    const unsigned expected = 1U << (nth % 3);
    if (channels != expected || step != static_cast<int>(nth / 3 % 2))
      return cudaErrorInvalidChannelDescriptor;
    number = kFirstNormalised + nth;
  } else {
    return cudaErrorInvalidChannelDescriptor;
  }
  *out = {static_cast<CUarray_format>(number), channels};
  return cudaSuccess;
}

// Of a format that format_of() does not give, from another driver: no channels.
cudaChannelFormatDesc descriptor_of(const CUDA_ARRAY3D_DESCRIPTOR &d) {
  const auto number = static_cast<unsigned>(d.Format);
  int bits = 0;
  int kind = cudaChannelFormatKindNone;
  if (number >= 0x01 && number <= 0x03) {
    bits = 8 << (number - 0x01);
    kind = cudaChannelFormatKindUnsigned;
  } else if (number >= 0x08 && number <= 0x0a) {
    bits = 8 << (number - 0x08);
    kind = cudaChannelFormatKindSigned;
  } else if (number == kHalf || number == kFloat) {
    bits = number == kHalf ? 16 : 32;
    kind = cudaChannelFormatKindFloat;
  } else if (number >= kFirstNormalised && number <= kFirstNormalised + 11) {
    const unsigned nth = number - kFirstNormalised;
    bits = nth / 3 % 2 == 0 ? 8 : 16;
    kind = kFirstNormalisedKind + static_cast<int>(nth);
  }
  return {bits, d.NumChannels > 1 ? bits : 0, d.NumChannels > 2 ? bits : 0,
          d.NumChannels > 2 ? bits : 0, static_cast<cudaChannelFormatKind>(kind)};
}

cudaError_t driver_form(const cudaChannelFormatDesc *desc, const cudaExtent &extent, unsigned flags,
                        CUDA_ARRAY3D_DESCRIPTOR *out) {
  if (desc == nullptr) return cudaErrorInvalidValue;
  array_format format{};
  CUDART_TRY(format_of(*desc, &format));
  *out = {extent.width, extent.height, extent.depth, format.format, format.channels, flags};
  return cudaSuccess;
}

cudaError_t allocate_array(cudaArray_t *out, const cudaChannelFormatDesc *desc,
                           const cudaExtent &extent, unsigned flags) {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  CUDA_ARRAY3D_DESCRIPTOR form{};
  CUDART_TRY(driver_form(desc, extent, flags, &form));
  return from_driver(CUDART_DRIVER(cuArray3DCreate)(reinterpret_cast<CUarray *>(out), &form));
}

// The runtime documents INVALID_VALUE where the driver finds no such handle.
cudaError_t without_handle_error(CUresult r) {
  return r == CUDA_ERROR_INVALID_HANDLE ? cudaErrorInvalidValue : from_driver(r);
}

static_assert(cudaArrayLayered == CUDA_ARRAY3D_LAYERED &&
              cudaArraySurfaceLoadStore == CUDA_ARRAY3D_SURFACE_LDST &&
              cudaArrayCubemap == CUDA_ARRAY3D_CUBEMAP &&
              cudaArrayTextureGather == CUDA_ARRAY3D_TEXTURE_GATHER &&
              cudaArraySparse == CUDA_ARRAY3D_SPARSE &&
              cudaArrayDeferredMapping == CUDA_ARRAY3D_DEFERRED_MAPPING);
constexpr unsigned kFlagsOfRectangles =
    cudaArraySurfaceLoadStore | cudaArrayTextureGather | cudaArraySparse | cudaArrayDeferredMapping;

}  // namespace

CUarray array_of(cudaArray_const_t array) {
  return reinterpret_cast<CUarray>(const_cast<cudaArray_t>(array));
}

cudaError_t array_layout(cudaArray_const_t array, array_extent *out) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  CUDART_TRY(without_handle_error(CUDART_DRIVER(cuArray3DGetDescriptor)(&d, array_of(array))));
  const cudaChannelFormatDesc desc = descriptor_of(d);
  out->element = static_cast<size_t>(desc.x) / 8 * d.NumChannels;
  if (out->element == 0) return cudaErrorNotSupported;
  out->row = d.Width * out->element;
  out->rows = d.Height == 0 ? 1 : d.Height;
  return cudaSuccess;
}

}  // namespace cudart

using namespace cudart;

CUDART_ENTRY(cudaMallocArray,
             (cudaArray_t * out, const cudaChannelFormatDesc *desc, size_t width, size_t height,
              unsigned flags),
             {
               if ((flags & ~kFlagsOfRectangles) != 0) return cudaErrorInvalidValue;
               return allocate_array(out, desc, {width, height, 0}, flags);
             })
CUDART_ENTRY(cudaMalloc3DArray,
             (cudaArray_t * out, const cudaChannelFormatDesc *desc, cudaExtent extent,
              unsigned flags),
             { return allocate_array(out, desc, extent, flags); })

CUDART_ENTRY(cudaFreeArray, (cudaArray_t array), {
  CUDART_TRY(bind());
  if (array == nullptr) return cudaSuccess;
  return without_handle_error(CUDART_DRIVER(cuArrayDestroy)(array_of(array)));
})

CUDART_ENTRY(cudaArrayGetInfo,
             (cudaChannelFormatDesc * desc, cudaExtent *extent, unsigned *flags, cudaArray_t array),
             {
               CUDART_TRY(bind());
               CUDA_ARRAY3D_DESCRIPTOR d{};
               CUDART_TRY(without_handle_error(
                   CUDART_DRIVER(cuArray3DGetDescriptor)(&d, array_of(array))));
               if (desc != nullptr) *desc = descriptor_of(d);
               if (extent != nullptr) *extent = {d.Width, d.Height, d.Depth};
               if (flags != nullptr) *flags = d.Flags;
               return cudaSuccess;
             })

CUDART_ENTRY(cudaGetChannelDesc, (cudaChannelFormatDesc * out, cudaArray_const_t array), {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  CUDA_ARRAY3D_DESCRIPTOR d{};
  CUDART_TRY(without_handle_error(CUDART_DRIVER(cuArray3DGetDescriptor)(&d, array_of(array))));
  *out = descriptor_of(d);
  return cudaSuccess;
})

CUDART_ENTRY(cudaMallocMipmappedArray,
             (cudaMipmappedArray_t * out, const cudaChannelFormatDesc *desc, cudaExtent extent,
              unsigned levels, unsigned flags),
             {
               if (out == nullptr) return cudaErrorInvalidValue;
               CUDART_TRY(bind());
               CUDA_ARRAY3D_DESCRIPTOR form{};
               CUDART_TRY(driver_form(desc, extent, flags, &form));
               return from_driver(CUDART_DRIVER(cuMipmappedArrayCreate)(
                   reinterpret_cast<CUmipmappedArray *>(out), &form, levels));
             })
CUDART_FORWARD(cudaGetMipmappedArrayLevel,
               (cudaArray_t * out, cudaMipmappedArray_const_t array, unsigned level),
               cuMipmappedArrayGetLevel,
               (reinterpret_cast<CUarray *>(out),
                reinterpret_cast<CUmipmappedArray>(const_cast<cudaMipmappedArray_t>(array)), level))
CUDART_ENTRY(cudaFreeMipmappedArray, (cudaMipmappedArray_t array), {
  CUDART_TRY(bind());
  if (array == nullptr) return cudaSuccess;
  return without_handle_error(
      CUDART_DRIVER(cuMipmappedArrayDestroy)(reinterpret_cast<CUmipmappedArray>(array)));
})

CUDART_FORWARD(cudaArrayGetMemoryRequirements,
               (cudaArrayMemoryRequirements * out, cudaArray_t array, int device),
               cuArrayGetMemoryRequirements,
               (same<CUDA_ARRAY_MEMORY_REQUIREMENTS>(out), array_of(array), device))
CUDART_FORWARD(cudaMipmappedArrayGetMemoryRequirements,
               (cudaArrayMemoryRequirements * out, cudaMipmappedArray_t array, int device),
               cuMipmappedArrayGetMemoryRequirements,
               (same<CUDA_ARRAY_MEMORY_REQUIREMENTS>(out),
                reinterpret_cast<CUmipmappedArray>(array), device))
CUDART_FORWARD(cudaArrayGetSparseProperties, (cudaArraySparseProperties * out, cudaArray_t array),
               cuArrayGetSparseProperties,
               (same<CUDA_ARRAY_SPARSE_PROPERTIES>(out), array_of(array)))
CUDART_FORWARD(cudaMipmappedArrayGetSparseProperties,
               (cudaArraySparseProperties * out, cudaMipmappedArray_t array),
               cuMipmappedArrayGetSparseProperties,
               (same<CUDA_ARRAY_SPARSE_PROPERTIES>(out), reinterpret_cast<CUmipmappedArray>(array)))
