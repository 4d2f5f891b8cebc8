// CUDA arrays and mipmapped arrays: their descriptors, limits, memory and copies.
#include <algorithm>
#include <string>
#include <vector>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

using bytes_t = std::vector<unsigned char>;

class arrays : public machine_test {
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

  static std::size_t free_bytes() {
    std::size_t unused = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo(&unused, &total), CUDA_SUCCESS);
    return unused;
  }

  static bytes_t counting(std::size_t n, unsigned seed = 1) {
    bytes_t v(n);
    for (std::size_t i = 0; i < n; ++i)
      v[i] = static_cast<unsigned char>(i * 31 + i / 251 * 7 + seed);
    return v;
  }

  // A copy between host memory and a box of an array, in either direction.
  static CUDA_MEMCPY3D to_array(CUarray to, const void *from, std::size_t width, std::size_t rows,
                                std::size_t slices) {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = CU_MEMORYTYPE_HOST;
    c.srcHost = from;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    c.dstArray = to;
    c.WidthInBytes = width;
    c.Height = rows;
    c.Depth = slices;
    return c;
  }
  static CUDA_MEMCPY3D from_array(void *to, CUarray from, std::size_t width, std::size_t rows,
                                  std::size_t slices) {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    c.srcArray = from;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    c.dstHost = to;
    c.WidthInBytes = width;
    c.Height = rows;
    c.Depth = slices;
    return c;
  }
  static bytes_t contents(CUarray a, std::size_t width, std::size_t rows, std::size_t slices) {
    bytes_t out(width * rows * slices);
    const CUDA_MEMCPY3D c = from_array(out.data(), a, width, rows, slices);
    EXPECT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
    return out;
  }
};

TEST_F(arrays, DescriptorsAreThoseOfTheCall) {
  CUDA_ARRAY_DESCRIPTOR d{64, 32, CU_AD_FORMAT_HALF, 4}, got{};
  CUarray a = nullptr;
  ASSERT_EQ(cuArrayCreate(&a, &d), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayGetDescriptor(&got, a), CUDA_SUCCESS);
  EXPECT_EQ(got.Width, 64U);
  EXPECT_EQ(got.Height, 32U);
  EXPECT_EQ(got.Format, CU_AD_FORMAT_HALF);
  EXPECT_EQ(got.NumChannels, 4U);
  CUDA_ARRAY3D_DESCRIPTOR got3d{};
  ASSERT_EQ(cuArray3DGetDescriptor(&got3d, a), CUDA_SUCCESS);
  EXPECT_EQ(got3d.Depth, 0U);
  EXPECT_EQ(got3d.Flags, 0U);
  ASSERT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuArrayGetDescriptor(&got, a), CUDA_ERROR_INVALID_HANDLE);

  const CUarray b = create(shape(8, 4, 6, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST));
  ASSERT_EQ(cuArray3DGetDescriptor(&got3d, b), CUDA_SUCCESS);
  EXPECT_EQ(got3d.Depth, 6U);
  EXPECT_EQ(got3d.Flags, unsigned{CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST});
  EXPECT_EQ(cuArray3DGetDescriptor(nullptr, b), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArray3DCreate(&a, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(arrays, FormatsAndChannelsAreChecked) {
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_FLOAT, 4)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_FLOAT, 3)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_FLOAT, 0)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(8, 8, 0, 0, static_cast<CUarray_format>(0x77))),
            CUDA_ERROR_INVALID_VALUE);
  // Block-compressed and planar formats are not served; normalised ones name their channels.
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_NV12, 1)), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_BC1_UNORM, 4)), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_UNORM_INT16X2, 2)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(8, 8, 0, 0, CU_AD_FORMAT_UNORM_INT16X2, 4)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(arrays, ExtentsFollowTheTableOfTheHeader) {
  const auto at = [](int value) { return static_cast<std::size_t>(value); };
  const std::size_t w1 = at(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH));
  EXPECT_EQ(created(shape(w1, 0, 0)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(w1 + 1, 0, 0)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(0, 0, 0)), CUDA_ERROR_INVALID_VALUE);
  const std::size_t h2 = at(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT));
  EXPECT_EQ(created(shape(2, h2, 0)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(2, h2 + 1, 0)), CUDA_ERROR_INVALID_VALUE);
  const std::size_t d3 = at(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH));
  EXPECT_EQ(created(shape(2, 2, d3)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(2, 2, d3 + 1)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(2, 0, 2)), CUDA_ERROR_INVALID_VALUE);  // three, without a height
  const std::size_t layers = at(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS));
  EXPECT_EQ(created(shape(2, 0, layers, CUDA_ARRAY3D_LAYERED)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(2, 0, layers + 1, CUDA_ARRAY3D_LAYERED)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(2, 2, 0, CUDA_ARRAY3D_LAYERED)), CUDA_ERROR_INVALID_VALUE);
  // A surface may be smaller than a texture.
  const std::size_t s1 = at(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH));
  ASSERT_LT(s1, w1);
  EXPECT_EQ(created(shape(s1, 0, 0, CUDA_ARRAY3D_SURFACE_LDST)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(s1 + 1, 0, 0, CUDA_ARRAY3D_SURFACE_LDST)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(arrays, CubemapsAndGathersHaveRulesOfTheirOwn) {
  constexpr unsigned cube = CUDA_ARRAY3D_CUBEMAP, layered = CUDA_ARRAY3D_LAYERED;
  EXPECT_EQ(created(shape(8, 8, 6, cube)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(8, 8, 5, cube)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(8, 8, 12, cube)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(8, 4, 6, cube)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(8, 8, 12, cube | layered)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(8, 8, 13, cube | layered)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created(shape(8, 8, 0, CUDA_ARRAY3D_TEXTURE_GATHER)), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(8, 8, 8, CUDA_ARRAY3D_TEXTURE_GATHER)), CUDA_ERROR_INVALID_VALUE);
  const auto gather =
      static_cast<std::size_t>(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH));
  EXPECT_EQ(created(shape(gather + 1, 8, 0, CUDA_ARRAY3D_TEXTURE_GATHER)),
            CUDA_ERROR_INVALID_VALUE);
  // The device attributes say that there are neither.
  EXPECT_EQ(created(shape(8, 8, 0, CUDA_ARRAY3D_SPARSE)), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(created(shape(8, 8, 0, CUDA_ARRAY3D_DEFERRED_MAPPING)), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(created(shape(8, 8, 0, 0x8000)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(arrays, TakeMemoryOfTheDeviceAndGiveItBack) {
  const std::size_t before = free_bytes();
  const CUarray a = create(shape(1024, 1024, 4, 0, CU_AD_FORMAT_FLOAT, 1));
  EXPECT_LE(free_bytes(), before - 16 * MiB);
  ASSERT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  start("memory=64M");
  EXPECT_EQ(created(shape(4096, 4096, 2, 0, CU_AD_FORMAT_FLOAT, 1)), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(created(shape(4096, 4096, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 2)), CUDA_SUCCESS);
}

TEST_F(arrays, EndWithTheirContext) {
  const std::size_t before = free_bytes();
  CUcontext second = nullptr;
#if CUDA_VERSION >= 13000
  ASSERT_EQ(cuCtxCreate(&second, nullptr, 0, 0), CUDA_SUCCESS);
#else
  ASSERT_EQ(cuCtxCreate(&second, 0, 0), CUDA_SUCCESS);
#endif
  const CUarray a = create(shape(1024, 1024, 4));
  CUmipmappedArray m = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(64, 64, 0);
  ASSERT_EQ(cuMipmappedArrayCreate(&m, &d, 3), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMipmappedArrayDestroy(m), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(arrays, OneDimensionalCopies) {
  const CUarray a = create(shape(256, 0, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1));
  const CUarray b = create(shape(256, 0, 0, 0, CU_AD_FORMAT_FLOAT, 1));
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 1024), CUDA_SUCCESS);
  const bytes_t in = counting(1024);
  bytes_t out(1024);
  ASSERT_EQ(cuMemcpyHtoA(a, 0, in.data(), 1024), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoA(b, 256, a, 512, 512), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoD(at, b, 256, 512), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoA(b, 0, at, 256), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoH(out.data(), b, 0, 768), CUDA_SUCCESS);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 256, in.begin() + 512));
  EXPECT_TRUE(std::equal(out.begin() + 256, out.begin() + 768, in.begin() + 512));
  // Beyond the end, and off the elements.
  EXPECT_EQ(cuMemcpyHtoA(a, 4, in.data(), 1024), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoA(a, ~std::size_t{3}, in.data(), 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoA(a, 2, in.data(), 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAtoH(out.data(), a, 0, 6), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAtoH(out.data(), nullptr, 0, 4), CUDA_ERROR_INVALID_VALUE);
  const CUarray bytes = create(shape(1024, 0, 0));
  EXPECT_EQ(cuMemcpyAtoA(bytes, 0, a, 0, 4), CUDA_ERROR_INVALID_VALUE);  // other elements
  const CUarray flat = create(shape(64, 64, 0));
  EXPECT_EQ(cuMemcpyHtoA(flat, 0, in.data(), 64), CUDA_ERROR_INVALID_VALUE);  // two dimensions
}

TEST_F(arrays, AsynchronousCopiesRunInTheOrderOfTheStream) {
  const CUarray a = create(shape(4096, 0, 0));
  const CUstream s = make_stream();
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 8192), CUDA_SUCCESS);
  auto *const bytes = static_cast<unsigned char *>(pinned);
  const bytes_t in = counting(4096);
  std::copy(in.begin(), in.end(), bytes);
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoAAsync(a, 0, bytes, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoHAsync(bytes + 4096, a, 0, 4096, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_TRUE(std::equal(in.begin(), in.end(), bytes + 4096));
}

TEST_F(arrays, RectanglesAndBoxes) {
  const bytes_t in = counting(std::size_t{12} * 5 * 4);
  const CUarray a = create(shape(12, 5, 4));
  CUDA_MEMCPY3D c = to_array(a, in.data(), 12, 5, 4);
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  EXPECT_EQ(contents(a, 12, 5, 4), in);
  // A box out of the middle of the array.
  bytes_t out(std::size_t{3} * 2 * 2);
  c = from_array(out.data(), a, 3, 2, 2);
  c.srcXInBytes = 4;
  c.srcY = 3;
  c.srcZ = 1;
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  for (std::size_t z = 0; z < 2; ++z)
    for (std::size_t y = 0; y < 2; ++y)
      for (std::size_t x = 0; x < 3; ++x)
        ASSERT_EQ(out[(z * 2 + y) * 3 + x], in[((z + 1) * 5 + y + 3) * 12 + x + 4]);
  c.srcY = 4;  // one row too many
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcY = 3;
  c.srcZ = 3;  // one slice too many
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcZ = 1;
  c.srcXInBytes = 10;  // a byte beyond the row
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
  c.srcXInBytes = 4;
  c.srcLOD = 1;  // must be 0
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);

  // Between two arrays, and a rectangle of one slice.
  const CUarray b = create(shape(16, 8, 0));
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  flat.srcArray = a;
  flat.srcY = 1;
  flat.dstArray = b;
  flat.dstXInBytes = 2;
  flat.dstY = 3;
  flat.WidthInBytes = 12;
  flat.Height = 4;
  ASSERT_EQ(cuMemcpy2D(&flat), CUDA_SUCCESS);
  const bytes_t got = contents(b, 16, 8, 1);
  for (std::size_t y = 0; y < 4; ++y)
    for (std::size_t x = 0; x < 12; ++x) ASSERT_EQ(got[(y + 3) * 16 + x + 2], in[(y + 1) * 12 + x]);
  flat.dstArray = create(shape(16, 8, 0, 0, CU_AD_FORMAT_UNSIGNED_INT16, 1));
  EXPECT_EQ(cuMemcpy2D(&flat), CUDA_ERROR_INVALID_VALUE);  // other elements
}

TEST_F(arrays, LayersOfLinesAreSlices) {
  const CUarray a = create(shape(32, 0, 4, CUDA_ARRAY3D_LAYERED));
  const bytes_t in = counting(std::size_t{32} * 4);
  CUDA_MEMCPY3D c = to_array(a, in.data(), 32, 1, 4);
  ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  EXPECT_EQ(contents(a, 32, 1, 4), in);
  c = to_array(a, in.data(), 32, 2, 2);  // a layer has one row
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(arrays, LevelsHalveAndShareTheirMemory) {
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(20, 12, 0, 0, CU_AD_FORMAT_FLOAT, 2);
  const std::size_t before = free_bytes();
  CUmipmappedArray m = nullptr;
  ASSERT_EQ(cuMipmappedArrayCreate(&m, &d, 99), CUDA_SUCCESS);  // 5 levels: 20, 10, 5, 2, 1
  EXPECT_LT(free_bytes(), before);
  CUarray level = nullptr, again = nullptr;
  EXPECT_EQ(cuMipmappedArrayGetLevel(&level, m, 5), CUDA_ERROR_INVALID_VALUE);
  for (unsigned i = 0; i < 5; ++i) {
    ASSERT_EQ(cuMipmappedArrayGetLevel(&level, m, i), CUDA_SUCCESS);
    CUDA_ARRAY3D_DESCRIPTOR got{};
    ASSERT_EQ(cuArray3DGetDescriptor(&got, level), CUDA_SUCCESS);
    EXPECT_EQ(got.Width, std::max<std::size_t>(20 >> i, 1));
    EXPECT_EQ(got.Height, std::max<std::size_t>(12 >> i, 1));
    EXPECT_EQ(got.Depth, 0U);
    const bytes_t in = counting(got.Width * got.Height * 8, i + 2);
    const CUDA_MEMCPY3D c = to_array(level, in.data(), got.Width * 8, got.Height, 1);
    ASSERT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  }
  for (unsigned i = 0; i < 5; ++i) {  // no level has written into another
    ASSERT_EQ(cuMipmappedArrayGetLevel(&level, m, i), CUDA_SUCCESS);
    ASSERT_EQ(cuMipmappedArrayGetLevel(&again, m, i), CUDA_SUCCESS);
    EXPECT_EQ(level, again);
    const std::size_t w = std::max<std::size_t>(20 >> i, 1), h = std::max<std::size_t>(12 >> i, 1);
    EXPECT_EQ(contents(level, w * 8, h, 1), counting(w * h * 8, i + 2));
  }
  EXPECT_EQ(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);  // it belongs to the mipmapped array
  ASSERT_EQ(cuMipmappedArrayDestroy(m), CUDA_SUCCESS);
  EXPECT_EQ(cuMipmappedArrayDestroy(m), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMipmappedArrayGetLevel(&level, m, 0), CUDA_ERROR_INVALID_HANDLE);
  CUDA_ARRAY3D_DESCRIPTOR got{};
  EXPECT_EQ(cuArray3DGetDescriptor(&got, again), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(arrays, LayersAndDepthsOfLevels) {
  CUmipmappedArray m = nullptr;
  CUarray level = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR got{};
  CUDA_ARRAY3D_DESCRIPTOR d = shape(8, 8, 6, CUDA_ARRAY3D_LAYERED);
  ASSERT_EQ(cuMipmappedArrayCreate(&m, &d, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMipmappedArrayGetLevel(&level, m, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuArray3DGetDescriptor(&got, level), CUDA_SUCCESS);
  EXPECT_EQ(got.Depth, 6U);  // each level has all layers
  d = shape(8, 8, 6);
  ASSERT_EQ(cuMipmappedArrayCreate(&m, &d, 2), CUDA_SUCCESS);
  ASSERT_EQ(cuMipmappedArrayGetLevel(&level, m, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuArray3DGetDescriptor(&got, level), CUDA_SUCCESS);
  EXPECT_EQ(got.Depth, 3U);
  const auto widest =
      static_cast<std::size_t>(limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH));
  d = shape(widest + 1, 8, 0);
  EXPECT_EQ(cuMipmappedArrayCreate(&m, &d, 1), CUDA_ERROR_INVALID_VALUE);
}

// The documented answer for arrays that are not created for it.
TEST_F(arrays, OnlyDeferredArraysHaveMemoryRequirements) {
  const CUarray a = create(shape(8, 8, 0));
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  EXPECT_EQ(cuArrayGetMemoryRequirements(&needs, a, 0), CUDA_ERROR_INVALID_VALUE);
  CUmipmappedArray m = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(8, 8, 0);
  ASSERT_EQ(cuMipmappedArrayCreate(&m, &d, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMipmappedArrayGetMemoryRequirements(&needs, m, 0), CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  EXPECT_EQ(cuArrayGetSparseProperties(&sparse, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayGetSparseProperties(&sparse, m), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(arrays, DestroyingUnderUnfinishedWorkIsAViolation) {
  start("profile=h200,lenient");
  const CUarray a = create(shape(4096, 0, 0));
  const CUstream s = make_stream();
  void *pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost(&pinned, 4096), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyAtoHAsync(pinned, a, 0, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
  ASSERT_EQ(violations(), 1U);
  EXPECT_EQ(violation(0).kind, HOSTCUDA_USE_AFTER_FREE);
  EXPECT_NE(std::string(violation(0).first).find("cuMemcpyAtoHAsync"), std::string::npos);
  EXPECT_NE(std::string(violation(0).second).find("cuArrayDestroy"), std::string::npos);
}

TEST_F(arrays, CopiesAreNodesOfGraphs) {
  const CUarray a = create(shape(64, 4, 0));
  bytes_t in = counting(256);
  const CUDA_MEMCPY3D c = to_array(a, in.data(), 64, 4, 1);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, ctx_), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  const bytes_t later = counting(256, 9);
  std::copy(later.begin(), later.end(), in.begin());  // a launch reads what is there then
  ASSERT_EQ(cuGraphLaunch(exec, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(contents(a, 64, 4, 1), in);

  // A captured copy is described by its array.
  const CUstream s = make_stream();
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUDA_MEMCPY3D captured = to_array(a, in.data(), 32, 2, 1);
  captured.dstXInBytes = 8;
  captured.dstY = 2;
  ASSERT_EQ(cuMemcpy3DAsync(&captured, s), CUDA_SUCCESS);
  CUgraph second = nullptr;
  ASSERT_EQ(cuStreamEndCapture(s, &second), CUDA_SUCCESS);
  std::size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(second, &node, &count), CUDA_SUCCESS);
  ASSERT_EQ(count, 1U);
  CUDA_MEMCPY3D got{};
  ASSERT_EQ(cuGraphMemcpyNodeGetParams(node, &got), CUDA_SUCCESS);
  EXPECT_EQ(got.dstMemoryType, CU_MEMORYTYPE_ARRAY);
  EXPECT_EQ(got.dstArray, a);
  EXPECT_EQ(got.dstXInBytes, 8U);
  EXPECT_EQ(got.dstY, 2U);
  ASSERT_EQ(cuGraphInstantiate(&exec, second, 0), CUDA_SUCCESS);
}

// Their bytes have addresses here: a program that guesses one must not get through with it.
TEST_F(arrays, AreNotFreedAsLinearMemory) {
  CUdeviceptr first = 0, after = 0;
  ASSERT_EQ(cuMemAlloc(&first, 512), CUDA_SUCCESS);
  const CUarray a = create(shape(512, 0, 0));
  ASSERT_EQ(cuMemAlloc(&after, 512), CUDA_SUCCESS);
  ASSERT_EQ(after, first + 1024);
  EXPECT_EQ(cuMemFree(first + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(first + 512, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle handle{};
  EXPECT_EQ(cuIpcGetMemHandle(&handle, first + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayDestroy(a), CUDA_SUCCESS);
}

TEST_F(arrays, HaveNoBytesOnAnUnbackedMachine) {
  start("unbacked");
  const CUarray a = create(shape(16384, 16384, 256));  // 64 GiB
  bytes_t in(256);
  const CUDA_MEMCPY3D c = to_array(a, in.data(), 16, 16, 1);
  EXPECT_EQ(cuMemcpy3D(&c), CUDA_SUCCESS);
  EXPECT_EQ(created(shape(16384, 16384, 16384)), CUDA_ERROR_OUT_OF_MEMORY);  // 4 TiB
}

TEST_F(arrays, NeedAContextAndAnswerInjectedFaults) {
  CUarray a = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR d = shape(8, 8, 0);
  ASSERT_EQ(hostcuda_fail("cuArray3DCreate", 1, CUDA_ERROR_OUT_OF_MEMORY), CUDA_SUCCESS);
  EXPECT_EQ(cuArray3DCreate(&a, &d), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuArray3DCreate(&a, &d), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(make_stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuArray3DCreate(&a, &d), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

}  // namespace
}  // namespace hostcuda_tests
