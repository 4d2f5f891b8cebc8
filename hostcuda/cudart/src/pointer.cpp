// What is known of an address.
#include "hostcuda/cudart/src/runtime.h"

namespace cudart {
namespace {

template <class Value>
bool pointer_attribute(Value *out, CUpointer_attribute attribute, const void *at) {
  return CUDART_DRIVER(cuPointerGetAttribute)(out, attribute, address_of(at)) == CUDA_SUCCESS;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_ENTRY(cudaPointerGetAttributes, (cudaPointerAttributes * out, const void *at), {
  if (out == nullptr) return cudaErrorInvalidValue;
  CUDART_TRY(bind());
  *out = {};
  unsigned type = 0;
  if (!pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at)) {
    // As of CUDA 11 host memory that CUDA does not know is no error.
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    out->hostPointer = const_cast<void *>(at);
    return cudaSuccess;
  }
  int managed = 0;
  pointer_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
  out->type = managed != 0                   ? cudaMemoryTypeManaged
              : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                             : cudaMemoryTypeHost;
  if (!pointer_attribute(&out->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at))
    out->device = current_device();
  CUdeviceptr device = 0;
  if (pointer_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at))
    out->devicePointer = reinterpret_cast<void *>(device);
  void *host = nullptr;
  // hostcuda's device memory can be read by the CPU, a GPU's cannot.
  if (out->type != cudaMemoryTypeDevice &&
      pointer_attribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, at))
    out->hostPointer = host;
  return cudaSuccess;
})
