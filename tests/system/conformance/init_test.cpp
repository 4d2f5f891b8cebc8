// Driver calls before, during and after cuInit.
#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

// Not a driver_test: that one would initialise the driver.
class init : public ::testing::Test {};

TEST_F(init, a01_current_context_before_init_is_not_initialized) {
  if (!cu().missing.empty()) SKIP_OR_FAIL_BECAUSE(cu().missing);
  IN_A_PROCESS_OF_ITS_OWN();
  const auto untouched = reinterpret_cast<CUcontext>(std::uintptr_t{0x5a5a5a5a});
  CUcontext context = untouched;
  expect_code(1, "cuCtxGetCurrent before cuInit", cu().CtxGetCurrent(&context),
              {CUDA_ERROR_NOT_INITIALIZED});
  EXPECT_EQ(context, untouched) << "the output was written";
}

class device : public driver_test {};

TEST_F(device, a68_unknown_attribute_is_invalid) {
  int value = 4711;
  expect_code(68, "attribute 100000",
              cu().DeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0),
              {CUDA_ERROR_INVALID_VALUE});
}

// Not of the numbered list: what was measured, for the report.
TEST_F(device, is_named_in_the_report) {
  char name[256] = "";
  std::size_t total = 0;
  MUST(cu().DeviceGetName(name, sizeof name, 0));
  MUST(cu().DeviceTotalMem(&total, 0));
  EXPECT_NE(name[0], '\0');
  EXPECT_GT(total, 0u);
  RecordProperty("device", name);
  RecordProperty("memory_mib", static_cast<int>(total / mib));
  RecordProperty("driver_version", version);
  RecordProperty("devices", devices);
  const char *config = nullptr;
  if (cu().is_hostcuda() && cu().hostcuda_config(&config) == CUDA_SUCCESS)
    RecordProperty("hostcuda", config);
}

}  // namespace
}  // namespace stillmap::conformance
