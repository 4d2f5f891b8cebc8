// Fixture for tests of CUDA arrays: descriptors, and copies between an array and the host.
#pragma once

#include <cstddef>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {

using bytes_t = std::vector<unsigned char>;

class array_test : public machine_test {
 protected:
  static CUDA_ARRAY3D_DESCRIPTOR shape(std::size_t width, std::size_t height, std::size_t depth,
                                       unsigned flags = 0,
                                       CUarray_format format = CU_AD_FORMAT_UNSIGNED_INT8,
                                       unsigned channels = 1) {
    CUDA_ARRAY3D_DESCRIPTOR d{};
    d.Width = width;
    d.Height = height;
    d.Depth = depth;
    d.Format = format;
    d.NumChannels = channels;
    d.Flags = flags;
    return d;
  }

  static CUresult created(const CUDA_ARRAY3D_DESCRIPTOR &d) {
    CUarray a = nullptr;
    const CUresult r = cuArray3DCreate(&a, &d);
    if (r == CUDA_SUCCESS) {
      EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
    }
    return r;
  }

  static CUarray create(const CUDA_ARRAY3D_DESCRIPTOR &d) {
    CUarray a = nullptr;
    EXPECT_EQ(cuArray3DCreate(&a, &d), CUDA_SUCCESS);
    return a;
  }

  static int limit(CUdevice_attribute which) {
    int value = 0;
    EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS);
    return value;
  }

  static bytes_t counting(std::size_t n, unsigned seed = 1) {
    bytes_t v(n);
    for (std::size_t i = 0; i < n; ++i)
      v[i] = static_cast<unsigned char>(i * 31 + i / 251 * 7 + seed);
    return v;
  }

  static CUDA_MEMCPY3D box(std::size_t width, std::size_t rows, std::size_t slices) {
    CUDA_MEMCPY3D c{};
    c.WidthInBytes = width;
    c.Height = rows;
    c.Depth = slices;
    return c;
  }
  // A copy between host memory and a box of an array, in either direction.
  static CUDA_MEMCPY3D to_array(CUarray to, const void *from, std::size_t width, std::size_t rows,
                                std::size_t slices) {
    CUDA_MEMCPY3D c = box(width, rows, slices);
    c.srcMemoryType = CU_MEMORYTYPE_HOST;
    c.srcHost = from;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    c.dstArray = to;
    return c;
  }
  static CUDA_MEMCPY3D from_array(void *to, CUarray from, std::size_t width, std::size_t rows,
                                  std::size_t slices) {
    CUDA_MEMCPY3D c = box(width, rows, slices);
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    c.srcArray = from;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    c.dstHost = to;
    return c;
  }
  static bytes_t contents(CUarray a, std::size_t width, std::size_t rows, std::size_t slices) {
    bytes_t out(width * rows * slices);
    const CUDA_MEMCPY3D c = from_array(out.data(), a, width, rows, slices);
    EXPECT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
    return out;
  }
};

}  // namespace hostcuda_tests
