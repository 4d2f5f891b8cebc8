// Functions that CUDA deprecates, and that programs still call.
#include <dlfcn.h>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class deprecated : public machine_test {
 protected:
  // Looked up, because the compiler warns of their use.
  template <class... Args>
  static CUresult call(const char *symbol, Args... args) {
    return reinterpret_cast<CUresult (*)(Args...)>(dlsym(RTLD_DEFAULT, symbol))(args...);
  }

  static CUcontext current() {
    CUcontext out = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&out), CUDA_SUCCESS);
    return out;
  }
};

TEST_F(deprecated, TheLastDetachDestroysAContext) {
  CUcontext mine = nullptr;
  CUcontext attached = nullptr;
  ASSERT_EQ(call("cuCtxCreate_v2", &mine, 0U, CUdevice{0}), CUDA_SUCCESS);
  ASSERT_EQ(call("cuCtxAttach", &attached, 0U), CUDA_SUCCESS);
  EXPECT_EQ(attached, mine);
  EXPECT_EQ(call("cuCtxAttach", &attached, 1U), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(call("cuCtxDetach", mine), CUDA_SUCCESS);
  EXPECT_EQ(current(), mine);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(call("cuCtxDetach", mine), CUDA_SUCCESS);
  EXPECT_EQ(current(), ctx_);
  EXPECT_EQ(call("cuCtxDetach", mine), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(call("cuCtxDetach", ctx_), CUDA_ERROR_INVALID_CONTEXT);  // the primary context
}

TEST_F(deprecated, ABlockShapeIsChecked) {
  start("profile=h200,kernels=skip");
  CUmodule m = nullptr;
  CUfunction f = nullptr;
  ASSERT_EQ(cuModuleLoadData(&m, ".version 8.0\n.entry f() { ret; }"), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&f, m, "f"), CUDA_SUCCESS);
  EXPECT_EQ(call("cuFuncSetBlockShape", f, 32, 4, 1), CUDA_SUCCESS);
  EXPECT_EQ(call("cuFuncSetBlockShape", f, 1024, 2, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call("cuFuncSetBlockShape", f, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call("cuFuncSetBlockShape", CUfunction{}, 1, 1, 1), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace hostcuda_tests
