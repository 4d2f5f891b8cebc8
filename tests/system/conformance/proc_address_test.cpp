// cuGetProcAddress with a query status, as in drivers of CUDA 12.0 and later.
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class proc_address : public driver_test {
 protected:
  struct answer {
    CUresult code;
    void *function;
    CUdriverProcAddressQueryResult status;
  };
  static answer ask(const char *name, int at_version) {
    // Outputs that are none of the expected answers.
    answer a{CUDA_SUCCESS, &a, static_cast<CUdriverProcAddressQueryResult>(77)};
    a.code = cu().GetProcAddress(name, &a.function, at_version, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                 &a.status);
    return a;
  }
};

TEST_F(proc_address, a65_unknown_name) {
  SKIP_WITHOUT(GetProcAddress);
  const answer a = ask("cuStillmapKnowsNoSuchFunction", version);
  expect_code(65, "an unknown name, status " + std::to_string(static_cast<int>(a.status)) + ",",
              a.code, {CUDA_SUCCESS});
  EXPECT_EQ(a.function, nullptr);
  EXPECT_EQ(a.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_F(proc_address, a66_version_above_the_drivers) {
  SKIP_WITHOUT(GetProcAddress);
  const answer a = ask("cuMemMap", version + 1000);
  expect_code(66, "a version 1000 above the driver's", a.code, {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(proc_address, a67_version_too_old) {
  SKIP_WITHOUT(GetProcAddress);
  const answer a = ask("cuMemMap", 10010);
  expect_code(67, "cuMemMap at 10010, status " + std::to_string(static_cast<int>(a.status)) + ",",
              a.code, {CUDA_SUCCESS});
  EXPECT_EQ(a.function, nullptr);
  EXPECT_EQ(a.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST_F(proc_address, each_function_of_this_suite_is_found_or_too_new) {
#define STILLMAP_EXPECT_FOUND(name, since, suffix) \
  EXPECT_TRUE(cu().name != nullptr || version < (since)) << "cu" #name;
  STILLMAP_RAW_CALLS(STILLMAP_EXPECT_FOUND)
#undef STILLMAP_EXPECT_FOUND
  EXPECT_NE(cu().CtxSynchronize, nullptr);
  EXPECT_TRUE(cu().GetProcAddress != nullptr || version < 12000);
}

}  // namespace
}  // namespace stillmap::conformance
