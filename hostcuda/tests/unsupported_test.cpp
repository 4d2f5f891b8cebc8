// Functions that hostcuda exports but does not provide.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "driver_functions.h"
#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

using any_function = CUresult (*)();

class unsupported : public machine_test {
 protected:
  static any_function find(const char *symbol) {
    return reinterpret_cast<any_function>(dlsym(RTLD_DEFAULT, symbol));
  }

  static void expect_all_exported(void *library) {
    for (const driver_function &f : kDriverFunctions)
      EXPECT_NE(dlsym(library, f.symbol), nullptr) << f.symbol;
  }

  static std::string without_suffixes(std::string symbol) {
    for (const char *end : {"_ptsz", "_ptds"})
      if (symbol.ends_with(end)) symbol.resize(symbol.size() - 5);
    if (symbol.size() > 3 && symbol[symbol.size() - 3] == '_' && symbol[symbol.size() - 2] == 'v')
      symbol.resize(symbol.size() - 3);
    return symbol;
  }

  static std::uint64_t calls(const char *name) {
    std::uint64_t n = 0;
    EXPECT_EQ(hostcuda_calls(name, &n), CUDA_SUCCESS) << name;
    return n;
  }
};

TEST_F(unsupported, EveryFunctionOfTheHeadersIsExported) {
  expect_all_exported(RTLD_DEFAULT);
}

TEST_F(unsupported, ThePlainLibraryExportsThemToo) {
  const char *files = std::getenv("TEST_SRCDIR");
  const char *workspace = std::getenv("TEST_WORKSPACE");
  if (files == nullptr || workspace == nullptr) GTEST_SKIP() << "Bazel only";
  const std::string path = std::string(files) + "/" + workspace + "/hostcuda/plain/libcuda.so.1";
  void *const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(dlsym(library, "hostcuda_reset"), nullptr);
  expect_all_exported(library);
}

TEST_F(unsupported, EachVersionIsFoundByItsNumber) {
  using look_up = CUresult (*)(const char *, void **, int, cuuint64_t, int *);
  const auto get = reinterpret_cast<look_up>(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"));
  for (const driver_function &f : kDriverFunctions) {
    if (f.since > 13000) continue;  // newer than the machine's driver
    const std::string symbol = f.symbol;
    const bool per_thread = symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
    void *out = nullptr;
    int status = -1;
    ASSERT_EQ(get(without_suffixes(symbol).c_str(), &out, f.since, per_thread ? 2 : 1, &status),
              CUDA_SUCCESS)
        << symbol;
    EXPECT_EQ(status, 0) << symbol;
    EXPECT_EQ(out, dlsym(RTLD_DEFAULT, f.symbol)) << symbol;
  }
}

TEST_F(unsupported, ReturnsNotSupportedAndCounts) {
  const any_function function = find("cuTexObjectCreate");
  ASSERT_NE(function, nullptr);
  EXPECT_EQ(function(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(function(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(calls("cuTexObjectCreate"), 2U);
  ASSERT_EQ(hostcuda_fail("cuTexObjectCreate", 1, CUDA_ERROR_UNKNOWN), CUDA_SUCCESS);
  EXPECT_EQ(function(), CUDA_ERROR_UNKNOWN);
}

// NVRTC looks this function up with dlsym and calls it without a check, before cuInit.
TEST_F(unsupported, ThereAreNoExportTables) {
  ASSERT_EQ(hostcuda_reset("profile=h200"), CUDA_SUCCESS);
  const auto get = reinterpret_cast<CUresult (*)(const void **, const CUuuid *)>(
      dlsym(RTLD_DEFAULT, "cuGetExportTable"));
  ASSERT_NE(get, nullptr);
  const void *table = &table;
  const CUuuid id{};
  EXPECT_EQ(get(&table, &id), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(unsupported, CheckpointFunctionsNeedNoInit) {
  ASSERT_EQ(hostcuda_reset("profile=h200"), CUDA_SUCCESS);
  for (const char *name : {"cuCheckpointProcessGetState", "cuCheckpointProcessLock",
                           "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
                           "cuCheckpointProcessUnlock", "cuCheckpointProcessGetRestoreThreadId"}) {
    ASSERT_NE(find(name), nullptr) << name;
    EXPECT_EQ(find(name)(), CUDA_ERROR_NOT_SUPPORTED) << name;
  }
}

TEST_F(unsupported, AStreamIsInNoGreenContext) {
  using get_context = CUresult (*)(CUstream, CUcontext *, void **);
  const auto get = reinterpret_cast<get_context>(dlsym(RTLD_DEFAULT, "cuStreamGetCtx_v2"));
  ASSERT_NE(get, nullptr);
  CUcontext out = nullptr;
  void *green = &out;
  ASSERT_EQ(get(make_stream(), &out, &green), CUDA_SUCCESS);
  EXPECT_EQ(out, ctx_);
  EXPECT_EQ(green, nullptr);
}

}  // namespace
}  // namespace hostcuda_tests
