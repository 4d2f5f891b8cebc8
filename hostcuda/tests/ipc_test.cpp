// Legacy IPC: memory that another process opens by a handle of 64 bytes.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "execution_fixture.h"
#include "second_process.h"

namespace hostcuda_tests {
namespace {

std::string as_text(const CUipcMemHandle &handle) {
  std::string out;
  for (const char c : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    out += two;
  }
  return out;
}

CUipcMemHandle from_text(const char *text) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    unsigned v = 0;
    std::sscanf(text + 2 * i, "%2x", &v);
    handle.reserved[i] = static_cast<char>(v);
  }
  return handle;
}

class ipc_memory : public machine_test {
 protected:
  static constexpr std::size_t kBytes = 3 * MiB + 700;
  static constexpr unsigned kLazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

  static unsigned char byte_at(CUdeviceptr at) {
    unsigned char byte = 0;
    EXPECT_EQ(cuMemcpyDtoH(&byte, at, 1), CUDA_SUCCESS);
    return byte;
  }

  static CUdeviceptr allocate(unsigned char value) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(at, value, kBytes), CUDA_SUCCESS);
    return at;
  }

  static CUipcMemHandle exported(CUdeviceptr at) {
    CUipcMemHandle handle{};
    EXPECT_EQ(cuIpcGetMemHandle(&handle, at), CUDA_SUCCESS);
    return handle;
  }

  static int run_role(const char *role, const std::string &variable) {
    return run_again(role, {variable});
  }

  static CUipcMemHandle given() { return from_text(std::getenv("HOSTCUDA_TEST_IPC")); }
  static bool is_role() { return std::getenv("HOSTCUDA_TEST_IPC") != nullptr; }

  // In the second process: the bytes are those of the exporter, both ways.
  void open_and_change() {
    CUdeviceptr at = 0;
    ASSERT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_SUCCESS);
    EXPECT_EQ(byte_at(at), 0x21);
    EXPECT_EQ(byte_at(at + kBytes - 1), 0x21);
    EXPECT_EQ(cuMemsetD8(at + kBytes, 1, 1), CUDA_ERROR_INVALID_VALUE) << "beyond the block";
    ASSERT_EQ(cuMemsetD8(at, 0x42, kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuIpcCloseMemHandle(at), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(at, 1, 1), CUDA_ERROR_INVALID_VALUE);
  }
};

TEST_F(ipc_memory, ImporterRole) {
  if (is_role()) open_and_change();
}

TEST_F(ipc_memory, LazyImporterRole) {
  if (!is_role()) return;
  start("profile=h200,lazy");
  open_and_change();
}

TEST_F(ipc_memory, AnotherProcessSeesTheSameBytes) {
  for (const char *mode : {"backed", "lazy"}) {
    start(std::string("profile=h200,") + mode);
    const CUdeviceptr before = allocate(0x77), at = allocate(0x21), after = allocate(0x77);
    const std::string variable = "HOSTCUDA_TEST_IPC=" + as_text(exported(at));
    EXPECT_EQ(run_role("ipc_memory.ImporterRole", variable), 0) << mode;
    EXPECT_EQ(byte_at(at), 0x42) << mode;
    EXPECT_EQ(byte_at(at + kBytes - 1), 0x42) << mode;
    EXPECT_EQ(byte_at(before + kBytes - 1), 0x77) << mode;
    EXPECT_EQ(byte_at(after), 0x77) << mode;
    ASSERT_EQ(cuMemsetD8(at, 0x21, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(run_role("ipc_memory.LazyImporterRole", variable), 0) << mode;
    for (const CUdeviceptr each : {before, at, after}) EXPECT_EQ(cuMemFree(each), CUDA_SUCCESS);
  }
}

TEST_F(ipc_memory, UnbackedRole) {
  if (!is_role()) return;
  CUdeviceptr at = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_ERROR_MAP_FAILED) << "it has no bytes";
  start("profile=h200,unbacked");
  ASSERT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(at, 1, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(at), CUDA_SUCCESS);
}

TEST_F(ipc_memory, UnbackedMachinesShareAddressesOnly) {
  start("profile=h200,unbacked");
  const CUipcMemHandle handle = exported(allocate(1));
  EXPECT_EQ(run_role("ipc_memory.UnbackedRole", "HOSTCUDA_TEST_IPC=" + as_text(handle)), 0);
}

TEST_F(ipc_memory, RulesRole) {
  if (!is_role()) return;
  CUdeviceptr at = 0, again = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&at, given(), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcOpenMemHandle(nullptr, given(), kLazy), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_SUCCESS);
  ASSERT_EQ(cuIpcOpenMemHandle(&again, given(), kLazy), CUDA_SUCCESS);
  EXPECT_EQ(again, at);
  hostcuda_counters c{};
  ASSERT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
  EXPECT_EQ(c.physical_bytes, 0U) << "imported memory is charged to its creator";
  // Another context of the device may not open it.
  CUcontext other = nullptr;
#if CUDA_VERSION >= 13000
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
#else
  ASSERT_EQ(cuCtxCreate(&other, 0, 0), CUDA_SUCCESS);
#endif
  EXPECT_EQ(cuIpcOpenMemHandle(&again, given(), kLazy), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  // Only its own function closes it, and it is not exported again.
  CUipcMemHandle handle{};
  EXPECT_EQ(cuIpcGetMemHandle(&handle, at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(at, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcCloseMemHandle(at + 512), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcCloseMemHandle(at), CUDA_SUCCESS);
  EXPECT_EQ(byte_at(at), 0x21) << "opened twice";
  EXPECT_EQ(cuIpcCloseMemHandle(at), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
  // A handle comes from anywhere.
  const CUipcMemHandle good = given();
  for (std::size_t byte = 0; byte < 32; ++byte) {
    for (const char flip : {'\x01', '\x40'}) {
      handle = good;
      handle.reserved[byte] = static_cast<char>(handle.reserved[byte] ^ flip);
      const CUresult r = cuIpcOpenMemHandle(&at, handle, kLazy);
      // A process of another user is not permitted.
      EXPECT_TRUE(r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_MAP_FAILED) << byte << ' ' << r;
    }
  }
  // Its context takes it along.
  ASSERT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&ctx_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
  // Closing while work is queued is a violation, as cuMemFree is.
  ASSERT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 1, 1, make_stream()), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(at), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 1U);
}

TEST_F(ipc_memory, FollowsTheRulesOfOpening) {
  const CUdeviceptr at = allocate(0x21);
  EXPECT_EQ(run_role("ipc_memory.RulesRole", "HOSTCUDA_TEST_IPC=" + as_text(exported(at))), 0);
}

TEST_F(ipc_memory, FreedRole) {
  if (!is_role()) return;
  CUdeviceptr at = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ipc_memory, AFreeMakesTheHandleVoid) {
  const CUdeviceptr at = allocate(1);
  const CUipcMemHandle handle = exported(at), twice = exported(at);
  EXPECT_EQ(std::memcmp(&handle, &twice, sizeof handle), 0);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  CUipcMemHandle none{};
  EXPECT_EQ(cuIpcGetMemHandle(&none, at), CUDA_ERROR_INVALID_VALUE);
  const std::string variable = "HOSTCUDA_TEST_IPC=" + as_text(handle);
  EXPECT_EQ(run_role("ipc_memory.FreedRole", variable), 0);
  // cuda.h: the same address gets another handle.
  ASSERT_EQ(allocate(1), at);
  const CUipcMemHandle later = exported(at);
  EXPECT_NE(std::memcmp(&handle, &later, sizeof handle), 0);
  EXPECT_EQ(run_role("ipc_memory.FreedRole", variable), 0);
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(run_role("ipc_memory.FreedRole", "HOSTCUDA_TEST_IPC=" + as_text(later)), 0);
}

TEST_F(ipc_memory, ExporterRole) {
  const char *fd = std::getenv("HOSTCUDA_TEST_IPC_OUT");
  if (fd == nullptr) return;
  const std::string text = as_text(exported(allocate(0x21)));
  ASSERT_EQ(write(std::atoi(fd), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST_F(ipc_memory, TheHandleOfAnEndedProcessIsVoid) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(run_role("ipc_memory.ExporterRole", "HOSTCUDA_TEST_IPC_OUT=" + std::to_string(ends[1])),
            0);
  char text[129] = {};
  ASSERT_EQ(read(ends[0], text, 128), 128);
  close(ends[0]);
  close(ends[1]);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&at, from_text(text), kLazy), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ipc_memory, AProcessCannotOpenItsOwnMemory) {
  const CUdeviceptr mine = allocate(1);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&at, exported(mine), kLazy), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuIpcOpenMemHandle(&at, CUipcMemHandle{}, kLazy), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuIpcCloseMemHandle(mine), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ipc_memory, OnlyMemoryOfCuMemAllocHasAHandle) {
  CUipcMemHandle handle{};
  CUdeviceptr managed = 0, pooled = 0;
  void *pinned = nullptr;
  const CUdeviceptr mine = allocate(1), mapped = reserve(kPage);
  map(mapped, create(kPage), kPage);
  ASSERT_EQ(cuMemAllocManaged(&managed, MiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, MiB, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocHost(&pinned, MiB), CUDA_SUCCESS);
  const auto capable = [](CUdeviceptr at) {
    char yes = 2;
    EXPECT_EQ(cuPointerGetAttribute(&yes, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at),
              CUDA_SUCCESS);
    return static_cast<int>(yes);
  };
  for (const CUdeviceptr at : {managed, pooled, mapped, reinterpret_cast<CUdeviceptr>(pinned)}) {
    EXPECT_EQ(cuIpcGetMemHandle(&handle, at), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(capable(at), 0);
  }
  EXPECT_EQ(capable(mine), 1);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, mine + 512), CUDA_ERROR_INVALID_VALUE) << "not its base";
  EXPECT_EQ(cuIpcGetMemHandle(nullptr, mine), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, mine), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ipc_memory, PeerRole) {
  if (!is_role()) return;
  start("profile=multi:2,peers=none");
  CUcontext other = nullptr;
  CUdeviceptr at = 0;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  start("profile=multi:2");
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  ASSERT_EQ(cuIpcOpenMemHandle(&at, given(), kLazy), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(at, 0x42, kBytes), CUDA_SUCCESS);  // without cuCtxEnablePeerAccess
  int device = -1;
  ASSERT_EQ(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
}

TEST_F(ipc_memory, AnotherDeviceOpensAsAPeer) {
  start("profile=multi:2");
  const CUdeviceptr at = allocate(0x21);
  EXPECT_EQ(run_role("ipc_memory.PeerRole", "HOSTCUDA_TEST_IPC=" + as_text(exported(at))), 0);
  EXPECT_EQ(byte_at(at), 0x42);
}

}  // namespace
}  // namespace hostcuda_tests
