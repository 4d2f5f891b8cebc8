// Tensor maps, as FlashAttention 3 and CUTLASS create them on the host for their kernels.
#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

// The arguments of one valid map: bfloat16, 64 x 1024 x 4, boxes of 64 x 192.
struct arguments {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint32_t rank = 3;
  std::uintptr_t address = 0x7f0000000000;
  cuuint64_t dims[5] = {64, 1024, 4, 1, 1};
  cuuint64_t strides[4] = {1536, 128, 16, 16};
  cuuint32_t box[5] = {64, 192, 1, 1, 1};
  cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

class tensor_map : public machine_test {
 protected:
  void SetUp() override { start("profile=h200"); }

  CUresult encode(const arguments &a) {
    return cuTensorMapEncodeTiled(&map_, a.type, a.rank, reinterpret_cast<void *>(a.address),
                                  a.dims, a.strides, a.box, a.steps, a.interleave, a.swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, a.fill);
  }

  CUtensorMap map_{};
};

// Regression: vLLM's attention kernels printed an error for each of their maps.
TEST_F(tensor_map, TheTilesOfAnAttentionKernel) {
  EXPECT_EQ(encode({}), CUDA_SUCCESS);
  EXPECT_EQ(cuTensorMapReplaceAddress(&map_, reinterpret_cast<void *>(0x7f0000001000)),
            CUDA_SUCCESS);
  EXPECT_EQ(cuTensorMapReplaceAddress(&map_, reinterpret_cast<void *>(0x7f0000001008)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(tensor_map, EachRequirementOfTheManualIsChecked) {
  const auto refused = [&](auto change) {
    arguments a;
    change(a);
    return encode(a) == CUDA_ERROR_INVALID_VALUE;
  };
  EXPECT_TRUE(refused([](arguments &a) { a.rank = 0; }));
  EXPECT_TRUE(refused([](arguments &a) { a.rank = 6; }));
  EXPECT_TRUE(refused([](arguments &a) { a.address += 8; }));
  EXPECT_TRUE(refused([](arguments &a) { a.dims[1] = 0; }));
  EXPECT_TRUE(refused([](arguments &a) { a.dims[1] = (cuuint64_t{1} << 32) + 1; }));
  EXPECT_TRUE(refused([](arguments &a) { a.strides[0] = 1544; }));
  EXPECT_TRUE(refused([](arguments &a) { a.strides[1] = cuuint64_t{1} << 40; }));
  EXPECT_TRUE(refused([](arguments &a) { a.box[1] = 257; }));
  EXPECT_TRUE(refused([](arguments &a) { a.box[0] = 4; }));    // not a multiple of 16 bytes
  EXPECT_TRUE(refused([](arguments &a) { a.box[0] = 128; }));  // wider than the swizzle
  EXPECT_TRUE(refused([](arguments &a) { a.steps[1] = 9; }));
  EXPECT_TRUE(refused([](arguments &a) {
    a.rank = 2;
    a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;
  }));
  EXPECT_TRUE(refused([](arguments &a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; }));
  EXPECT_TRUE(refused([](arguments &a) {
    a.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  }));
  // The step of the first dimension has no meaning without interleaving.
  arguments ignored;
  ignored.steps[0] = 0;
  EXPECT_EQ(encode(ignored), CUDA_SUCCESS);
}

TEST_F(tensor_map, DevicesBeforeHopperHaveNone) {
  start("profile=a100");
  EXPECT_EQ(encode({}), CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace hostcuda_tests
