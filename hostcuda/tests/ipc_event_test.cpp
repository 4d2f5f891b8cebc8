// Events that two processes record and wait for.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "execution_fixture.h"
#include "second_process.h"

namespace hostcuda_tests {
namespace {

template <class Handle>
std::string as_text(const Handle &handle) {
  std::string out;
  for (const char c : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    out += two;
  }
  return out;
}

template <class Handle>
Handle from_variable(const char *name) {
  Handle handle{};
  const char *const text = std::getenv(name);
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    unsigned v = 0;
    std::sscanf(text + 2 * i, "%2x", &v);
    handle.reserved[i] = static_cast<char>(v);
  }
  return handle;
}

// A byte each way between the two processes.
struct two_pipes {
  int to_child[2], to_parent[2];
  two_pipes() {
    EXPECT_EQ(pipe(to_child), 0);
    EXPECT_EQ(pipe(to_parent), 0);
  }
  ~two_pipes() {
    for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
  }
  std::vector<std::string> variables() const {
    return {"HOSTCUDA_TEST_IN=" + std::to_string(to_child[0]),
            "HOSTCUDA_TEST_OUT=" + std::to_string(to_parent[1])};
  }
};
void send(int fd) {
  ASSERT_EQ(write(fd, "x", 1), 1);
}
void receive(int fd) {
  char byte;
  ASSERT_EQ(read(fd, &byte, 1), 1);
}
int fd_of(const char *variable) {
  return std::atoi(std::getenv(variable));
}

class ipc_event : public machine_test {
 protected:
  static constexpr unsigned kShared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  static bool is_role() { return std::getenv("HOSTCUDA_TEST_IPC_EVENT") != nullptr; }

  static CUevent open_given() {
    CUevent e = nullptr;
    EXPECT_EQ(cuIpcOpenEventHandle(&e, from_variable<CUipcEventHandle>("HOSTCUDA_TEST_IPC_EVENT")),
              CUDA_SUCCESS);
    return e;
  }

  static std::string exported(CUevent e) {
    CUipcEventHandle handle{};
    EXPECT_EQ(cuIpcGetEventHandle(&handle, e), CUDA_SUCCESS);
    return "HOSTCUDA_TEST_IPC_EVENT=" + as_text(handle);
  }

  static unsigned char byte_at(CUdeviceptr at) {
    unsigned char byte = 0;
    EXPECT_EQ(cuMemcpyDtoH(&byte, at, 1), CUDA_SUCCESS);
    return byte;
  }
};

TEST_F(ipc_event, FollowerRole) {
  if (!is_role()) return;
  const CUevent e = open_given();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuIpcOpenMemHandle(&at, from_variable<CUipcMemHandle>("HOSTCUDA_TEST_IPC"), 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  const CUstream s = make_stream();
  ASSERT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 0x42, 100, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  send(fd_of("HOSTCUDA_TEST_OUT"));
  EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  float ms = 0;
  EXPECT_EQ(cuEventElapsedTime(&ms, e, e), CUDA_ERROR_INVALID_HANDLE);
  CUipcEventHandle none{};
  EXPECT_EQ(cuIpcGetEventHandle(&none, e), CUDA_ERROR_INVALID_VALUE) << "it is not its owner";
  EXPECT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
}

// The other process waits for a recording here, and its own recording is waited for here.
TEST_F(ipc_event, OrdersWorkOfTwoProcesses) {
  const CUevent e = make_event(kShared);
  const CUstream s = make_stream();
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 100), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(at, 0, 100), CUDA_SUCCESS);
  const CUdeviceptr own = reserve(kPage);
  map(own, create(kPage), kPage);
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(own, 1, 100, s), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(at, 0x21, 100, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  CUipcMemHandle memory{};
  ASSERT_EQ(cuIpcGetMemHandle(&memory, at), CUDA_SUCCESS);
  const two_pipes pipes;
  std::vector<std::string> variables = pipes.variables();
  variables.push_back(exported(e));
  variables.push_back("HOSTCUDA_TEST_IPC=" + as_text(memory));
  int status = -1;
  std::thread other([&] { status = run_again("ipc_event.FollowerRole", variables); });
  receive(pipes.to_parent[0]);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(byte_at(at), 0);
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_EQ(byte_at(at), 0x42);
  // The other process had waited for the work here.
  EXPECT_EQ(cuMemUnmap(own, kPage), CUDA_SUCCESS);
  EXPECT_EQ(violations(), 0U);
  other.join();
  EXPECT_EQ(status, 0);
}

constexpr int kRounds = 600;

TEST_F(ipc_event, FasterRole) {
  if (!is_role()) return;
  const CUevent e = open_given();
  const CUstream s = make_stream();
  for (int round = 0; round < kRounds; ++round) {
    receive(fd_of("HOSTCUDA_TEST_IN"));
    ASSERT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    send(fd_of("HOSTCUDA_TEST_OUT"));
  }
  EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
}

// Regression: the other process saw a recording before this one counted it as done. What the other
// recorded behind it was then not known to be behind the work here.
TEST_F(ipc_event, TheOtherProcessIsFaster) {
  const CUevent e = make_event(kShared);
  const CUstream s = make_stream();
  const CUdeviceptr own = reserve(kPage);
  const CUmemGenericAllocationHandle memory = create(kPage);
  const two_pipes pipes;
  std::vector<std::string> variables = pipes.variables();
  variables.push_back(exported(e));
  int status = -1;
  std::thread other([&] { status = run_again("ipc_event.FasterRole", variables); });
  std::atomic<bool> stop{false};
  // Keeps the engine's lock from the thread that has run the recording.
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::thread busy([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    while (!stop) cuStreamQuery(s);
  });
  int round = 0;
  for (; round < kRounds && violations() == 0; ++round) {
    map(own, memory, kPage);
    EXPECT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(own, 1, 100, s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    send(pipes.to_child[1]);
    receive(pipes.to_parent[0]);
    EXPECT_EQ(hostcuda_release(s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(own, kPage), CUDA_SUCCESS);
  }
  EXPECT_EQ(violations(), 0U) << "in round " << round;
  for (; round < kRounds; ++round) send(pipes.to_child[1]);
  stop = true;
  busy.join();
  other.join();
  EXPECT_EQ(status, 0);
}

TEST_F(ipc_event, RecorderRole) {
  if (!is_role()) return;
  const CUevent e = open_given();
  const CUstream s = make_stream();
  ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  send(fd_of("HOSTCUDA_TEST_OUT"));
  receive(fd_of("HOSTCUDA_TEST_IN"));
  ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
}

TEST_F(ipc_event, WaitsForARecordingOfAnotherProcess) {
  for (const char *schedule : {"threads", "jitter:1", "seeded:1"}) {
    start(std::string("profile=h200,schedule=") + schedule);
    const CUevent e = make_event(kShared);
    const CUstream s = make_stream();
    EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS) << "not recorded yet";
    const two_pipes pipes;
    std::vector<std::string> variables = pipes.variables();
    variables.push_back(exported(e));
    int status = -1;
    std::thread other([&] { status = run_again("ipc_event.RecorderRole", variables); });
    receive(pipes.to_parent[0]);
    std::atomic<int> ran{0};
    const auto count = [](void *to) { ++*static_cast<std::atomic<int> *>(to); };
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuLaunchHostFunc(s, count, &ran), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(ran, 0);
    send(pipes.to_child[1]);
    EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS) << schedule;
    EXPECT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS) << schedule;
    EXPECT_EQ(ran, 1);
    other.join();
    EXPECT_EQ(status, 0) << schedule;
    // A recording here is the last one now.
    ASSERT_EQ(hostcuda_hold(s), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(hostcuda_release(s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  }
}

TEST_F(ipc_event, FollowsTheRulesOfHandles) {
  CUipcEventHandle handle{};
  CUevent out = nullptr;
  int supported = 0;
  ASSERT_EQ(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(supported, 1);
  EXPECT_EQ(cuIpcGetEventHandle(&handle, make_event()), CUDA_ERROR_INVALID_VALUE);
  const CUevent e = make_event(kShared);
  EXPECT_EQ(cuIpcGetEventHandle(nullptr, e), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuIpcGetEventHandle(&handle, e), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcOpenEventHandle(nullptr, handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcOpenEventHandle(&out, handle), CUDA_ERROR_INVALID_CONTEXT) << "its own process";
  EXPECT_EQ(cuIpcOpenEventHandle(&out, CUipcEventHandle{}), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcOpenEventHandle(&out, handle), CUDA_ERROR_INVALID_HANDLE) << "destroyed";
  EXPECT_EQ(cuIpcGetEventHandle(&handle, e), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace hostcuda_tests
