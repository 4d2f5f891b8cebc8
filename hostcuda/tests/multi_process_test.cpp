// Memory shared between processes, and driver calls in a forked child.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "execution_fixture.h"
#include "second_process.h"

namespace hostcuda_tests {
namespace {

CUmemAllocationProp shareable() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

// Maps an imported handle and returns its address.
CUdeviceptr map_import(int fd) {
  CUmemGenericAllocationHandle h = 0;
  CUdeviceptr at = 0;
  CUmemAccessDesc d{};
  d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (cuMemImportFromShareableHandle(&h, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS ||
      cuMemAddressReserve(&at, kPage, 0, 0, 0) != CUDA_SUCCESS ||
      cuMemMap(at, kPage, 0, h, 0) != CUDA_SUCCESS ||
      cuMemSetAccess(at, kPage, &d, 1) != CUDA_SUCCESS || cuMemRelease(h) != CUDA_SUCCESS)
    return 0;
  return at;
}

// Body of the second process, which executes this program again.
int importer(int fd) {
  CUcontext ctx = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&ctx, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(ctx) != CUDA_SUCCESS)
    return 10;
  const CUdeviceptr at = map_import(fd);
  if (at == 0) return 11;
  close(fd);
  unsigned char byte = 0;
  if (cuMemcpyDtoH(&byte, at + kPage - 1, 1) != CUDA_SUCCESS || byte != 0x21) return 12;
  if (cuMemsetD8(at, 0x42, kPage) != CUDA_SUCCESS) return 13;
  return 0;
}

class multi_process : public machine_test {};

// Not an independent test: entry of the second process, with the descriptor in the environment.
TEST_F(multi_process, ImporterRole) {
  const char *fd = std::getenv("HOSTCUDA_TEST_IMPORT_FD");
  if (fd == nullptr) {
    EXPECT_EQ(map_import(-1), 0U);  // run alone: importing an invalid descriptor fails
    return;
  }
  EXPECT_EQ(importer(std::atoi(fd)), 0);
}

TEST_F(multi_process, AnotherProcessSeesTheSameBytes) {
  const CUmemAllocationProp p = shareable();
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_SUCCESS);
  const CUdeviceptr at = reserve(kPage);
  map(at, h, kPage);
  ASSERT_EQ(cuMemsetD8(at, 0x21, kPage), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  const int passed = dup(fd);  // without close-on-exec
  close(fd);
  const std::string variable = "HOSTCUDA_TEST_IMPORT_FD=" + std::to_string(passed);
  EXPECT_EQ(run_again("multi_process.ImporterRole", {variable}), 0);
  close(passed);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, at, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 0x42);
}

TEST_F(multi_process, TheImportersDataSurvivesTheExporter) {
  const CUmemAllocationProp p = shareable();
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(cuMemCreate(&h, kPage, &p, 0), CUDA_SUCCESS);
  const CUdeviceptr at = reserve(kPage);
  map(at, h, kPage);
  ASSERT_EQ(cuMemsetD8(at, 0x33, kPage), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(at, kPage), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  const CUdeviceptr imported = map_import(fd);
  ASSERT_NE(imported, 0U);
  close(fd);
  unsigned char byte = 0;
  ASSERT_EQ(cuMemcpyDtoH(&byte, imported + 100, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 0x33);
}

TEST_F(multi_process, AForkedChildIsNotInitialised) {
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 1000), CUDA_SUCCESS);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr mine = 0;
    const bool refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuMemAlloc(&mine, 10) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuMemFree(at) == CUDA_ERROR_NOT_INITIALIZED &&
                         hostcuda_reset("") == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

}  // namespace
}  // namespace hostcuda_tests
