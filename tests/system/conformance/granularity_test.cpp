// cuMemGetAllocationGranularity.
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class granularity : public vmm_test {};

TEST_F(granularity, a13_is_two_mib) {
  const CUmemAllocationProp p = properties();
  std::size_t minimum = 0, recommended = 0;
  MUST(cu().MemGetAllocationGranularity(&minimum, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  MUST(cu().MemGetAllocationGranularity(&recommended, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  record(13, "minimum " + std::to_string(minimum) + ", recommended " + std::to_string(recommended));
  EXPECT_EQ(minimum, 2 * mib);
  EXPECT_GE(recommended, minimum);
  EXPECT_EQ(recommended % minimum, 0u);
}

TEST_F(granularity, a14_null_output_is_invalid) {
  const CUmemAllocationProp p = properties();
  expect_code(14, "output NULL",
              cu().MemGetAllocationGranularity(nullptr, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(granularity, a15_unknown_option_is_invalid) {
  const CUmemAllocationProp p = properties();
  std::size_t out = 0;
  expect_code(
      15, "option 7",
      cu().MemGetAllocationGranularity(&out, &p, static_cast<CUmemAllocationGranularity_flags>(7)),
      {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(granularity, a16_bad_device_or_type) {
  const auto ask = [](const std::string &label, const CUmemAllocationProp &p) {
    std::size_t out = 0;
    const CUresult got =
        cu().MemGetAllocationGranularity(&out, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    record(16, label + " returned " + name_of(got));
  };
  ask("device 999", properties(999));
  ask("device -1", properties(-1));
  CUmemAllocationProp p = properties();
  p.type = static_cast<CUmemAllocationType>(0x55);
  ask("allocation type 0x55", p);
  p = properties();
  p.location.type = static_cast<CUmemLocationType>(0x55);
  ask("location type 0x55", p);
  p = properties();
  std::size_t out = 0;
  EXPECT_EQ(cu().MemGetAllocationGranularity(&out, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS)
      << "a good question is still answered";
  EXPECT_EQ(out, page);
}

}  // namespace
}  // namespace stillmap::conformance
