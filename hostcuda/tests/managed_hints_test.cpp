// Hints about managed memory are read back.
#include <dlfcn.h>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

class managed_hints : public machine_test {
 protected:
  static constexpr std::size_t kPages = 16, kHostPage = 4096, kBytes = kPages * kHostPage;

  void use(const std::string &profile) {
    start("profile=" + profile);
    ASSERT_EQ(cuMemAllocManaged(&at_, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  }

  // The headers declare the functions with a device or with a location.
  template <class... A>
  static CUresult call(const char *name, A... a) {
    const auto f = reinterpret_cast<CUresult (*)(A...)>(dlsym(RTLD_DEFAULT, name));
    return f == nullptr ? CUDA_ERROR_NOT_FOUND : f(a...);
  }

  static CUresult advise(CUdeviceptr at, std::size_t bytes, int advice, CUdevice device) {
    return call("cuMemAdvise", at, bytes, advice, device);
  }

  static int read(CUdeviceptr at, std::size_t bytes, int attribute) {
    int value = 77;
    EXPECT_EQ(
        cuMemRangeGetAttribute(&value, 4, static_cast<CUmem_range_attribute>(attribute), at, bytes),
        CUDA_SUCCESS);
    return value;
  }

  static CUmemLocation location(int type, int id) {
    CUmemLocation l{};
    l.type = static_cast<CUmemLocationType>(type);
    l.id = id;
    return l;
  }

  CUdeviceptr at_ = 0;
};

TEST_F(managed_hints, ARangeHasWhatAllOfItsPagesHave) {
  use("multi:2");
  EXPECT_EQ(read(at_, kBytes, 1), 0);
  EXPECT_EQ(read(at_, kBytes, 2), CU_DEVICE_INVALID);
  ASSERT_EQ(advise(at_ + kHostPage, 2 * kHostPage, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_SUCCESS);
  ASSERT_EQ(advise(at_, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1), CUDA_SUCCESS);
  EXPECT_EQ(read(at_, kBytes, 1), 0);
  EXPECT_EQ(read(at_ + kHostPage, 2 * kHostPage, 1), 1);
  EXPECT_EQ(read(at_ + 2 * kHostPage, 2 * kHostPage, 1), 0);
  EXPECT_EQ(read(at_, kBytes, 2), 1);
  // Less than a page counts as the page.
  ASSERT_EQ(advise(at_ + 3 * kHostPage + 9, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU),
            CUDA_SUCCESS);
  EXPECT_EQ(read(at_, kBytes, 2), CU_DEVICE_INVALID);
  EXPECT_EQ(read(at_ + 3 * kHostPage, kHostPage, 2), CU_DEVICE_CPU);
  EXPECT_EQ(read(at_ + 4 * kHostPage, kHostPage, 2), 1);
  ASSERT_EQ(advise(at_, kBytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0), CUDA_SUCCESS);
  EXPECT_EQ(read(at_ + 3 * kHostPage, kHostPage, 2), CU_DEVICE_INVALID);
}

TEST_F(managed_hints, AccessorsAreListed) {
  use("multi:3");
  for (const CUdevice d : {2, 0, CU_DEVICE_CPU})
    ASSERT_EQ(advise(at_, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, d), CUDA_SUCCESS);
  ASSERT_EQ(advise(at_, kHostPage, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 0), CUDA_SUCCESS);
  int of_all[4] = {}, of_rest[2] = {};
  ASSERT_EQ(cuMemRangeGetAttribute(of_all, sizeof of_all, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at_,
                                   kBytes),
            CUDA_SUCCESS);
  EXPECT_EQ(of_all[0], 2);
  EXPECT_EQ(of_all[1], CU_DEVICE_CPU);
  EXPECT_EQ(of_all[2], CU_DEVICE_INVALID);
  EXPECT_EQ(of_all[3], CU_DEVICE_INVALID);
  ASSERT_EQ(cuMemRangeGetAttribute(of_rest, sizeof of_rest, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                   at_ + kHostPage, kHostPage),
            CUDA_SUCCESS);
  EXPECT_EQ(of_rest[0], 0);
  EXPECT_EQ(of_rest[1], 2);
}

TEST_F(managed_hints, APrefetchIsOrderedAndRemembered) {
  use("multi:2");
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(call("cuMemPrefetchAsync", at_, kBytes, CUdevice{1}, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(read(at_, kBytes, 4), 1) << "requested, not done";
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  ASSERT_EQ(call("cuMemPrefetchAsync_v2", at_, kHostPage, location(2, 0), 0U, s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  EXPECT_EQ(read(at_, kHostPage, 4), CU_DEVICE_CPU);
  EXPECT_EQ(read(at_, kBytes, 4), CU_DEVICE_INVALID);
  EXPECT_EQ(read(at_, kHostPage, 7), 2);
  EXPECT_EQ(read(at_ + kHostPage, kHostPage, 8), 1);
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(call("cuMemPrefetchAsync", at_, kBytes, CUdevice{1}, s),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(managed_hints, LocationsHaveATypeAndAnId) {
  use("h200");
  const int preferred = CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
  ASSERT_EQ(call("cuMemAdvise_v2", at_, kBytes, preferred, location(3, 0)), CUDA_SUCCESS);
  int type = 0, id = -1;
  void *data[] = {&type, &id};
  std::size_t sizes[] = {4, 4};
  CUmem_range_attribute which[] = {static_cast<CUmem_range_attribute>(5),
                                   static_cast<CUmem_range_attribute>(6)};
  ASSERT_EQ(cuMemRangeGetAttributes(data, sizes, which, 2, at_, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(type, 3);
  EXPECT_EQ(id, 0);
  EXPECT_EQ(call("cuMemAdvise_v2", at_, kBytes, preferred, location(3, 9)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call("cuMemAdvise_v2", at_, kBytes, preferred, location(0, 0)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(call("cuMemAdvise_v2", at_, kBytes, preferred, location(1, 5)),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(call("cuMemAdvise_v2", at_, kBytes, int{CU_MEM_ADVISE_SET_ACCESSED_BY}, location(3, 0)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(managed_hints, OnlyManagedMemoryHasHints) {
  use("h200");
  CUdeviceptr other = 0;
  ASSERT_EQ(cuMemAlloc(&other, kBytes), CUDA_SUCCESS);
  char pageable[100] = {};
  int value = 0;
  for (const CUdeviceptr at : {other, reinterpret_cast<CUdeviceptr>(pageable)}) {
    EXPECT_EQ(advise(at, 10, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(call("cuMemPrefetchAsync", at, std::size_t{10}, CUdevice{0}, CUstream{}),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, 10),
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(advise(at_, kBytes + 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(advise(at_, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(advise(at_, kBytes, 99, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at_, 10),
            CUDA_ERROR_INVALID_VALUE);
  // A block at the same address begins without hints.
  ASSERT_EQ(advise(at_, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFree(at_), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  ASSERT_EQ(cuMemAllocManaged(&again, kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(read(again, kBytes, 1), 0);
}

}  // namespace
}  // namespace hostcuda_tests
