// Device resources and green contexts: the rules of splits, and which work belongs to which context.
#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

#if CUDA_VERSION >= 12050

class green_contexts : public machine_test {
 protected:
  static CUdevResource whole() {
    CUdevResource r{};
    EXPECT_EQ(cuDeviceGetDevResource(0, &r, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    return r;
  }
  // How many groups there are, and how many SMs each has; 0 if the split is refused with `error`.
  struct groups {
    CUresult error;
    unsigned count = 0, each = 0, left = 0;
  };
  static groups split(CUdevResource from, unsigned wanted, unsigned least, unsigned flags = 0) {
    std::vector<CUdevResource> out(wanted);
    CUdevResource rest{};
    groups g{};
    g.count = wanted;
    g.error = cuDevSmResourceSplitByCount(out.data(), &g.count, &from, &rest, flags, least);
    if (g.error != CUDA_SUCCESS) return {g.error};
    g.each = out[0].sm.smCount;
    g.left = rest.type == CU_DEV_RESOURCE_TYPE_SM ? rest.sm.smCount : 0;
    for (unsigned i = 0; i < g.count; ++i) EXPECT_EQ(out[i].sm.smCount, g.each);
    return g;
  }
  // A green context with `least` SMs.
  static CUgreenCtx make_green(unsigned least) {
    CUdevResource from = whole(), part{};
    unsigned count = 1;
    CUdevResourceDesc desc = nullptr;
    CUgreenCtx green = nullptr;
    EXPECT_EQ(cuDevSmResourceSplitByCount(&part, &count, &from, nullptr, 0, least), CUDA_SUCCESS);
    EXPECT_EQ(cuDevResourceGenerateDesc(&desc, &part, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    return green;
  }
  static CUcontext context_of(CUgreenCtx green) {
    CUcontext out = nullptr;
    EXPECT_EQ(cuCtxFromGreenCtx(&out, green), CUDA_SUCCESS);
    return out;
  }
  static CUgreenCtx green_of(CUstream stream) {
    CUgreenCtx out = nullptr;
    EXPECT_EQ(cuStreamGetGreenCtx(stream, &out), CUDA_SUCCESS);
    return out;
  }
};

TEST_F(green_contexts, TheDeviceHasAllMultiprocessors) {
  int count = 0;
  ASSERT_EQ(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
            CUDA_SUCCESS);
  CUdevResource r = whole();
  EXPECT_EQ(r.type, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(r.sm.smCount, static_cast<unsigned>(count));
#if CUDA_VERSION >= 13000
  EXPECT_EQ(r.sm.minSmPartitionSize, 8U);  // cuda.h, of compute capability 9.0
  EXPECT_EQ(r.sm.smCoscheduledAlignment, 8U);
#endif
  EXPECT_EQ(cuDeviceGetDevResource(7, &r, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetDevResource(0, nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetDevResource(0, &r, CU_DEV_RESOURCE_TYPE_INVALID),
            CUDA_ERROR_INVALID_RESOURCE_TYPE);
  EXPECT_EQ(cuCtxGetDevResource(ctx_, &r, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  EXPECT_EQ(r.sm.smCount, static_cast<unsigned>(count));
  EXPECT_EQ(cuCtxGetDevResource(nullptr, &r, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(green_contexts, SplitsAreAlignedAndDisjoint) {
  const unsigned all = whole().sm.smCount;
  groups g = split(whole(), 100, 9);  // rounded up to 16
  ASSERT_EQ(g.error, CUDA_SUCCESS);
  EXPECT_EQ(g.each, 16U);
  EXPECT_EQ(g.count, all / 16);
  EXPECT_EQ(g.left, all % 16);
  g = split(whole(), 2, 0);  // the least size
  EXPECT_EQ(g.each, 8U);
  EXPECT_EQ(g.count, 2U);
  EXPECT_EQ(g.left, all - 16);
  CUdevResource from = whole();
  unsigned count = 0;
  ASSERT_EQ(cuDevSmResourceSplitByCount(nullptr, &count, &from, nullptr, 0, 16), CUDA_SUCCESS);
  EXPECT_EQ(count, all / 16);  // a query
  EXPECT_EQ(split(whole(), 1, all + 1).error, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(split(whole(), 1, 8, 0x80).error, CUDA_ERROR_INVALID_VALUE);
  from.type = CU_DEV_RESOURCE_TYPE_INVALID;
  EXPECT_EQ(split(from, 1, 8).error, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  EXPECT_EQ(cuDevSmResourceSplitByCount(nullptr, nullptr, &from, nullptr, 0, 8),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(split(whole(), 1, 1, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING).each, 2U);
}

TEST_F(green_contexts, OlderArchitecturesHaveSmallerParts) {
  start("profile=a100");
  EXPECT_EQ(split(whole(), 1, 0).each, 4U);
  EXPECT_EQ(split(whole(), 1, 5).each, 6U);
  EXPECT_EQ(split(whole(), 1, 8, CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE).error,
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(green_contexts, DescriptorsTakePartsOfOneSplit) {
  CUdevResource from = whole(), parts[2] = {}, rest{}, others[2] = {};
  unsigned count = 2;
  CUdevResourceDesc desc = nullptr;
  ASSERT_EQ(cuDevSmResourceSplitByCount(parts, &count, &from, &rest, 0, 8), CUDA_SUCCESS);
  ASSERT_EQ(cuDevSmResourceSplitByCount(others, &count, &from, nullptr, 0, 8), CUDA_SUCCESS);
  CUdevResource both[] = {parts[0], rest}, mixed[] = {parts[0], others[1]},
                twice[] = {parts[1], parts[1]};
  EXPECT_EQ(cuDevResourceGenerateDesc(&desc, both, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuDevResourceGenerateDesc(&desc, mixed, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  EXPECT_EQ(cuDevResourceGenerateDesc(&desc, twice, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  EXPECT_EQ(cuDevResourceGenerateDesc(&desc, both, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevResourceGenerateDesc(nullptr, both, 1), CUDA_ERROR_INVALID_VALUE);
  both[1].type = CU_DEV_RESOURCE_TYPE_INVALID;
  EXPECT_EQ(cuDevResourceGenerateDesc(&desc, both, 2), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  // A part is split again through a green context only.
  EXPECT_EQ(split(parts[0], 1, 8).error, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CUgreenCtx green = make_green(32);
  CUdevResource mine{};
  ASSERT_EQ(cuGreenCtxGetDevResource(green, &mine, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  EXPECT_EQ(mine.sm.smCount, 32U);
  EXPECT_EQ(split(mine, 9, 8).count, 4U);
}

TEST_F(green_contexts, KeepThePrimaryContext) {
  CUgreenCtx green = make_green(16);
  unsigned flags = 0;
  int active = 0;
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuGreenCtxDestroy(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  CUdevResourceDesc none = nullptr;
  EXPECT_EQ(cuGreenCtxCreate(&green, none, 0, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(green_contexts, CreateNeedsItsFlagAndItsDevice) {
  start("profile=multi:2");
  CUdevResource r = whole();
  CUdevResourceDesc desc = nullptr;
  ASSERT_EQ(cuDevResourceGenerateDesc(&desc, &r, 1), CUDA_SUCCESS);
  CUgreenCtx green = nullptr;
  EXPECT_EQ(cuGreenCtxCreate(&green, desc, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGreenCtxCreate(&green, desc, 1, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGreenCtxCreate(&green, desc, 5, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
}

TEST_F(green_contexts, AreCurrentAsTheirContext) {
  CUgreenCtx green = make_green(24);
  const CUcontext converted = context_of(green);
  EXPECT_NE(converted, ctx_);
  EXPECT_EQ(context_of(green), converted);
  ASSERT_EQ(cuCtxPushCurrent(converted), CUDA_SUCCESS);
  CUcontext now = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, converted);
  CUdevResource r{};
  ASSERT_EQ(cuCtxGetDevResource(now, &r, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  EXPECT_EQ(r.sm.smCount, 24U);
  // What is created here belongs to the primary context, and outlives the green one.
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 4096), CUDA_SUCCESS);
  const CUstream s = make_stream();
  EXPECT_EQ(green_of(s), green);
  EXPECT_EQ(green_of(nullptr), green);
  ASSERT_EQ(cuMemsetD8Async(at, 7, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDestroy(converted), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxPopCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, converted);
  EXPECT_EQ(green_of(nullptr), nullptr);
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 7);
  EXPECT_EQ(cuCtxSetCurrent(converted), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

TEST_F(green_contexts, StreamsAreOfTheContextTheyWereMadeFor) {
  CUgreenCtx green = make_green(8);
  CUstream s = nullptr;
  EXPECT_EQ(cuGreenCtxStreamCreate(&s, green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, -99), CUDA_SUCCESS);
  EXPECT_EQ(green_of(s), green);
  CUcontext of_stream = nullptr;
  ASSERT_EQ(cuStreamGetCtx(s, &of_stream), CUDA_SUCCESS);
  EXPECT_EQ(of_stream, context_of(green));
  // The newer function names both.
  CUgreenCtx got = nullptr;
  ASSERT_EQ(cuStreamGetCtx_v2(s, &of_stream, &got), CUDA_SUCCESS);
  EXPECT_EQ(of_stream, ctx_);
  EXPECT_EQ(got, green);
  int priority = 0;
  ASSERT_EQ(cuStreamGetPriority(s, &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, -5);
  EXPECT_EQ(green_of(make_stream()), nullptr);
  // Work of its streams is ordered with that of others by the events of the primary context.
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 4096), CUDA_SUCCESS);
  const CUevent done = make_event();
  ASSERT_EQ(cuMemsetD8Async(at, 1, 4096, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(done, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(done), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
  // A stream that was not destroyed before its context.
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuStreamDestroy(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0),
            CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(green_contexts, EndWithTheirPrimaryContext) {
  CUgreenCtx green = make_green(8);
  const CUcontext converted = context_of(green);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetCurrent(converted), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  unsigned flags = 0;
  int active = 0;
  ASSERT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);  // its destruction has released nothing
}

TEST_F(green_contexts, AThreadInADestroyedOneIsTold) {
  CUgreenCtx green = make_green(8);
  ASSERT_EQ(cuCtxSetCurrent(context_of(green)), CUDA_SUCCESS);
  ASSERT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAlloc(&at, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&at, 4096), CUDA_SUCCESS);
}

#endif

}  // namespace
}  // namespace hostcuda_tests
