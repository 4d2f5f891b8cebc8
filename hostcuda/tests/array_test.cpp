// CUDA arrays and mipmapped arrays: their descriptors, limits, memory and levels.
#include <algorithm>
#include <vector>

#include "array_fixture.h"

namespace hostcuda_tests {
namespace {

class arrays : public array_test {};

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
