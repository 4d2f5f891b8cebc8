// The served functions, on machines of hostcuda.
#include <gtest/gtest.h>
#include <hostcuda/hostcuda.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "hostcuda/nvml/src/nvml_api.h"

namespace nvml_tests {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class nvml : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(hostcuda_reset("profile=h200"), CUDA_SUCCESS);
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  }
  void TearDown() override {
    while (nvmlShutdown() == NVML_SUCCESS) {
    }
    hostcuda_reset("profile=h200");
  }

  static nvmlDevice_t device(unsigned index) {
    nvmlDevice_t out = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &out), NVML_SUCCESS);
    return out;
  }

  static void make_current(CUdevice ordinal) {
    CUcontext context = nullptr;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
};

using nvml_memory = nvml;

TEST_F(nvml, IsInitialisedAsOftenAsItIsShutDown) {
  unsigned count = 0;
  ASSERT_EQ(nvmlInit(), NVML_SUCCESS);
  ASSERT_EQ(nvmlInitWithFlags(1), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  nvmlDevice_t handle = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &handle), NVML_ERROR_UNINITIALIZED);
  char text[96];
  EXPECT_EQ(nvmlDeviceGetName(nullptr, text, sizeof text), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, sizeof text), NVML_ERROR_UNINITIALIZED);
}

TEST_F(nvml, ErrorsHaveTexts) {
  EXPECT_STREQ(nvmlErrorString(NVML_SUCCESS), "Success");
  EXPECT_STREQ(nvmlErrorString(NVML_ERROR_INSUFFICIENT_SIZE), "Insufficient Size");
  EXPECT_NE(nvmlErrorString(static_cast<nvmlReturn_t>(12345)), nullptr);
}

TEST_F(nvml, CallsNoFunctionOfTheDriver) {
  char text[96];
  EXPECT_EQ(nvmlDeviceGetName(device(0), text, sizeof text), NVML_SUCCESS);
  EXPECT_STREQ(text, "hostcuda H200");
  std::uint64_t calls = 1;
  ASSERT_EQ(hostcuda_calls(nullptr, &calls), CUDA_SUCCESS);
  EXPECT_EQ(calls, 0U);
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST_F(nvml, VersionsAreThoseOfTheProfile) {
  char text[80];
  int version = 0;
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion_v2(&version), NVML_SUCCESS);
  EXPECT_EQ(version, 13000);
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, sizeof text), NVML_SUCCESS);
  EXPECT_STREQ(text, "580.00");
  EXPECT_EQ(nvmlSystemGetNVMLVersion(text, sizeof text), NVML_SUCCESS);
  EXPECT_STREQ(text, "13.580.00");
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, 6), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, 7), NVML_SUCCESS);
  EXPECT_EQ(nvmlSystemGetDriverVersion(nullptr, 80), NVML_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(hostcuda_reset("profile=old-driver-450"), CUDA_SUCCESS);
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion(&version), NVML_SUCCESS);
  EXPECT_EQ(version, 11000);
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, sizeof text), NVML_SUCCESS);
  EXPECT_STREQ(text, "450.00");
}

TEST_F(nvml, DevicesAreFoundByIndexUuidAndAddress) {
  ASSERT_EQ(hostcuda_reset("profile=multi:3,memory=1G"), CUDA_SUCCESS);
  unsigned count = 0;
  ASSERT_EQ(nvmlDeviceGetCount(&count), NVML_SUCCESS);
  ASSERT_EQ(count, 3U);
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t found = nullptr;
    char uuid[80];
    ASSERT_EQ(nvmlDeviceGetUUID(device(i), uuid, sizeof uuid), NVML_SUCCESS);
    EXPECT_EQ(std::strlen(uuid), 40U);
    EXPECT_EQ(nvmlDeviceGetUUID(device(i), uuid, 40), NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(nvmlDeviceGetHandleByUUID(uuid, &found), NVML_SUCCESS);
    EXPECT_EQ(found, device(i));
    nvmlPciInfo_t pci{};
    ASSERT_EQ(nvmlDeviceGetPciInfo_v3(device(i), &pci), NVML_SUCCESS);
    const std::string id = pci.busId;
    EXPECT_EQ(id, "00000000:1" + std::to_string(i) + ":00.0");
    EXPECT_EQ("0000" + std::string(pci.busIdLegacy), id);
    EXPECT_EQ(pci.bus, 0x10U + i);
    for (const std::string &form : {id, id.substr(0, id.size() - 2), id.substr(9)}) {
      found = nullptr;
      EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(form.c_str(), &found), NVML_SUCCESS) << form;
      EXPECT_EQ(found, device(i)) << form;
    }
    unsigned index = 99;
    EXPECT_EQ(nvmlDeviceGetIndex(device(i), &index), NVML_SUCCESS);
    EXPECT_EQ(index, i);
  }
}

TEST_F(nvml, TheDriverAgrees) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUuuid uuid{};
  ASSERT_EQ(cuDeviceGetUuid(&uuid, 0), CUDA_SUCCESS);
  char text[80];
  ASSERT_EQ(nvmlDeviceGetUUID(device(0), text, sizeof text), NVML_SUCCESS);
  char first[12];
  std::snprintf(first, sizeof first, "GPU-%02x%02x", uuid.bytes[0] & 0xff, uuid.bytes[1] & 0xff);
  EXPECT_EQ(std::string(text).substr(0, 8), first);
  char id[32];
  ASSERT_EQ(cuDeviceGetPCIBusId(id, sizeof id, 0), CUDA_SUCCESS);
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId(id, &found), NVML_SUCCESS);
  EXPECT_EQ(found, device(0));
}

TEST_F(nvml, WhatThereIsNotIsNotFound) {
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(1, &found), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-0", &found), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("0000:11:00.0", &found), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("0000:10:01.0", &found), NVML_ERROR_NOT_FOUND);
  for (const char *bad : {"", "10", "0000:10", "0000:10:00.0x", "0000:10:00.0.", "0000:10:00:0",
                          "-1:10:0", "0000:10:00.0.0", "zebra"})
    EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(bad, &found), NVML_ERROR_INVALID_ARGUMENT) << bad;
  char text[96];
  EXPECT_EQ(nvmlDeviceGetName(nullptr, text, sizeof text), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetName(device(0), text, 3), NVML_ERROR_INSUFFICIENT_SIZE);
}

TEST_F(nvml, AHandleEndsWithItsDevice) {
  ASSERT_EQ(hostcuda_reset("profile=multi:2,memory=1G"), CUDA_SUCCESS);
  const nvmlDevice_t second = device(1);
  int major = 0;
  int minor = 0;
  EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(second, &major, &minor), NVML_SUCCESS);
  ASSERT_EQ(hostcuda_reset("profile=wsl2"), CUDA_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(second, &major, &minor),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(device(0), &major, &minor), NVML_SUCCESS);
  EXPECT_EQ(major * 10 + minor, 89);
}

TEST_F(nvml, AnOldCallerGetsNoMoreThanItsStructureHolds) {
  nvmlPciInfo_t pci;
  std::memset(&pci, 0x55, sizeof pci);
  ASSERT_EQ(nvmlDeviceGetPciInfo(device(0), &pci), NVML_SUCCESS);
  EXPECT_EQ(pci.bus, 0x10U);
  EXPECT_EQ(pci.pciSubSystemId, 0x55555555U);
  ASSERT_EQ(nvmlDeviceGetPciInfo_v2(device(0), &pci), NVML_SUCCESS);
  EXPECT_NE(pci.pciSubSystemId, 0x55555555U);
  EXPECT_EQ(pci.busId[0], 0x55);
}

TEST_F(nvml_memory, IsWhatTheProcessUses) {
  nvmlMemory_t memory{};
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(device(0), &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, 0U);
  EXPECT_EQ(memory.free, memory.total);
  make_current(0);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 64 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(hostcuda_occupy(0, 16 * kMiB), CUDA_SUCCESS);
  std::size_t unused = 0;
  std::size_t total = 0;
  ASSERT_EQ(cuMemGetInfo(&unused, &total), CUDA_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(device(0), &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total, total);
  EXPECT_EQ(memory.free, unused);
  EXPECT_EQ(memory.used, 80 * kMiB);
  nvmlMemory_v2_t second{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device(0), &second), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  second.version = sizeof second | 2U << 24;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo_v2(device(0), &second), NVML_SUCCESS);
  EXPECT_EQ(second.used, memory.used);
  EXPECT_EQ(second.free, memory.free);
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(device(0), nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(nvml_memory, LimitsOfAGroupAreThoseOfItsFile) {
  const std::string group = ::testing::TempDir() + "nvml_limits_" + std::to_string(::getpid());
  ASSERT_EQ(::mkdir(group.c_str(), 0700), 0);
  nvmlGetMemoryLimits_v1_t limits{group.c_str(), 1, 2, 3};
  EXPECT_EQ(nvmlDeviceGetMemoryLimits_v1(device(0), nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetMemoryLimits_v1(device(0), &limits), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(limits.hardLimit, 2U);
  const std::string file = group + "/hostcuda.limits";
  std::ofstream(file) << 4 * kMiB << ' ' << 8 * kMiB << ' ' << kMiB << '\n';
  ASSERT_EQ(nvmlDeviceGetMemoryLimits_v1(device(0), &limits), NVML_SUCCESS);
  EXPECT_EQ(limits.softLimit, 4 * kMiB);
  EXPECT_EQ(limits.hardLimit, 8 * kMiB);
  EXPECT_EQ(limits.currentUsed, kMiB);
  limits.nameSpace = nullptr;
  EXPECT_EQ(nvmlDeviceGetMemoryLimits_v1(device(0), &limits), NVML_ERROR_INVALID_ARGUMENT);
  ::unlink(file.c_str());
  ::rmdir(group.c_str());
}

TEST_F(nvml_memory, AProcessWithAContextIsListed) {
  ASSERT_EQ(hostcuda_reset("profile=multi:2,memory=1G"), CUDA_SUCCESS);
  unsigned count = 4;
  nvmlProcessInfo_v2_t infos[4];
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(1), &count, infos), NVML_SUCCESS);
  EXPECT_EQ(count, 0U);
  make_current(1);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 32 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(1), &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1U);
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v2(device(1), &count, infos), NVML_SUCCESS);
  EXPECT_EQ(infos[0].pid, static_cast<unsigned>(getpid()));
  EXPECT_EQ(infos[0].usedGpuMemory, 32 * kMiB);
  EXPECT_EQ(infos[0].gpuInstanceId, 0xFFFFFFFFU);
  nvmlProcessInfo_v1_t first[1];
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses(device(1), &count, first), NVML_SUCCESS);
  EXPECT_EQ(first[0].usedGpuMemory, 32 * kMiB);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(1), &count, nullptr),
            NVML_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &count, infos), NVML_SUCCESS);
  EXPECT_EQ(count, 0U);
}

TEST_F(nvml_memory, AForkedChildUsesNone) {
  make_current(0);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 32 * kMiB), CUDA_SUCCESS);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    nvmlMemory_t memory{};
    nvmlDevice_t handle = nullptr;
    const bool right = nvmlDeviceGetHandleByIndex_v2(0, &handle) == NVML_SUCCESS &&
                       nvmlDeviceGetMemoryInfo(handle, &memory) == NVML_SUCCESS && memory.used == 0;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Starts a process with a context on the first device, and memory there.
pid_t start_user(std::size_t bytes) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    CUcontext context = nullptr;
    CUdeviceptr at = 0;
    const bool works = cuInit(0) == CUDA_SUCCESS &&
                       cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                       cuCtxSetCurrent(context) == CUDA_SUCCESS &&
                       cuMemAlloc(&at, bytes) == CUDA_SUCCESS && write(ends[1], "", 1) == 1;
    while (works) pause();
    _exit(1);
  }
  close(ends[1]);
  char ready = 0;
  EXPECT_EQ(read(ends[0], &ready, 1), 1);
  close(ends[0]);
  return child;
}

TEST_F(nvml_memory, TheProcessesOfAMachineAreSeenByOneThatTakesNoPart) {
  const std::string machine = "machine=nvml-" + std::to_string(getpid());
  ASSERT_EQ(hostcuda_reset(("profile=multi:2,lazy,memory=256M," + machine).c_str()), CUDA_SUCCESS);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &count, nullptr), NVML_SUCCESS);
  const pid_t users[] = {start_user(64 * kMiB), start_user(32 * kMiB)};
  const auto expect_used = [](unsigned ordinal, std::size_t bytes) {
    nvmlMemory_t memory{};
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(device(ordinal), &memory), NVML_SUCCESS);
    EXPECT_EQ(memory.total, 256 * kMiB);
    EXPECT_EQ(memory.used, bytes);
    EXPECT_EQ(memory.free, memory.total - bytes);
    nvmlMemory_v2_t second{};
    second.version = sizeof second | 2U << 24;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device(ordinal), &second), NVML_SUCCESS);
    EXPECT_EQ(second.used, bytes);
  };
  expect_used(0, 96 * kMiB);
  expect_used(1, 0);
  count = 1;
  nvmlProcessInfo_v2_t infos[4];
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &count, infos),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 2U);
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(0), &count, infos), NVML_SUCCESS);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(infos[i].pid, static_cast<unsigned>(users[i]));
    EXPECT_EQ(infos[i].usedGpuMemory, (64 >> i) * kMiB);
  }
  nvmlProcessInfo_v1_t first[4];
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses(device(0), &count, first), NVML_SUCCESS);
  EXPECT_EQ(first[1].usedGpuMemory, 32 * kMiB);
  kill(users[0], SIGKILL);
  EXPECT_EQ(waitpid(users[0], nullptr, 0), users[0]);
  expect_used(0, 32 * kMiB);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v2(device(0), &count, infos), NVML_SUCCESS);
  EXPECT_EQ(count, 1U);
  // One that takes part is listed, too. The last process deletes the file.
  make_current(0);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v2(device(0), &count, infos),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2U);
  expect_used(0, 32 * kMiB);
  kill(users[1], SIGKILL);
  EXPECT_EQ(waitpid(users[1], nullptr, 0), users[1]);
  expect_used(0, 0);
}

TEST_F(nvml, AProgramMayUseCudaInAChildAfterIt) {
  char text[96];
  ASSERT_EQ(nvmlDeviceGetName(device(0), text, sizeof text), NVML_SUCCESS);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    _exit(cuInit(0) == CUDA_SUCCESS ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace nvml_tests
