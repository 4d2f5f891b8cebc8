// Every documented function is exported; those that are not served say so.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "hostcuda/nvml/src/nvml_api.h"

namespace nvml_tests {
namespace {

constexpr const char *exported_names[] = {
#define X(name) #name,
#include "hostcuda/nvml/src/function_list.h"
#undef X
    "nvmlErrorString"};

TEST(nvml_exports, AreAllDocumentedFunctions) {
  void *const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  for (const char *symbol : exported_names) EXPECT_NE(dlsym(library, symbol), nullptr) << symbol;
  EXPECT_EQ(dlsym(library, "_ZN4nvml11initialisedEv"), nullptr);
}

TEST(nvml_exports, WhatIsNotServedSaysSo) {
  auto *const temperature = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, int, unsigned *)>(
      dlsym(RTLD_DEFAULT, "nvmlDeviceGetTemperature"));
  ASSERT_NE(temperature, nullptr);
  unsigned degrees = 17;
  EXPECT_EQ(temperature(nullptr, 0, &degrees), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(temperature(nullptr, 0, &degrees), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(degrees, 17U);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
}

}  // namespace
}  // namespace nvml_tests
