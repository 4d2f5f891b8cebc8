// Machines that several processes share: machine=NAME.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "execution_fixture.h"
#include "second_process.h"

namespace hostcuda_tests {
namespace {

constexpr std::size_t kDevice = 64 * MiB;

// What the processes of a test pass to each other.
struct shared_page {
  CUipcMemHandle handle, second_handle;
  CUmemPoolPtrExportData block;
  struct {
    std::atomic<std::int64_t> held;  // bytes, at least
    std::atomic<int> exported;       // a descriptor, or 0
    std::atomic<int> process;
  } storm[8];
};
shared_page *page = nullptr;

using task = std::int64_t (*)(std::int64_t argument);

// A process that runs functions of this program, one after the other. It has forked from a process that
// has never called cuInit.
class worker {
 public:
  worker() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      serve(ends[1]);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  worker(worker &&other) noexcept
      : pid_(std::exchange(other.pid_, -1)), socket_(std::exchange(other.socket_, -1)) {}
  ~worker() { end(); }

  // -1 if the process ends instead.
  std::int64_t run(task what, std::int64_t argument = 0) const {
    start(what, argument);
    return result();
  }
  void start(task what, std::int64_t argument = 0) const {
    const request r{what, argument};
    EXPECT_EQ(write(socket_, &r, sizeof r), static_cast<ssize_t>(sizeof r));
  }
  std::int64_t result() const {
    std::int64_t out = -1;
    return read(socket_, &out, sizeof out) == sizeof out ? out : -1;
  }

  bool replies_within(std::chrono::milliseconds limit) const {
    pollfd p{socket_, POLLIN, 0};
    return poll(&p, 1, static_cast<int>(limit.count())) == 1;
  }

  void end(int signal = SIGKILL) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    wait();
  }
  void wait() {
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(pid_, -1), &status, 0) > 0, true);
    close(socket_);
  }
  pid_t pid() const { return pid_; }

 private:
  struct request {
    task what;
    std::int64_t argument;
  };
  [[noreturn]] static void serve(int socket) {
    request r{};
    while (read(socket, &r, sizeof r) == sizeof r) {
      const std::int64_t out = r.what(r.argument);
      if (write(socket, &out, sizeof out) != sizeof out) break;
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  int socket_ = -1;
};

// ---- What the workers do. ----

std::string machine_config;  // set before they are started
CUdeviceptr kept_block = 0;
CUmemGenericAllocationHandle kept_handle = 0;
CUmemoryPool kept_pool = nullptr;

std::int64_t join(std::int64_t device) {
  CUcontext ctx = nullptr;
  if (hostcuda_reset(machine_config.c_str()) != CUDA_SUCCESS) return -1;
  if (const CUresult r = cuInit(0); r != CUDA_SUCCESS) return r;
  if (const CUresult r = cuDevicePrimaryCtxRetain(&ctx, static_cast<CUdevice>(device));
      r != CUDA_SUCCESS)
    return r;
  return cuCtxSetCurrent(ctx);
}

std::int64_t allocate_block(std::int64_t bytes) {
  return cuMemAlloc(&kept_block, static_cast<std::size_t>(bytes));
}
std::int64_t free_kept_block(std::int64_t) {
  return cuMemFree(kept_block);
}
std::int64_t free_now(std::int64_t) {
  std::size_t unused = 0, total = 0;
  if (cuMemGetInfo(&unused, &total) != CUDA_SUCCESS || total != kDevice) return -1;
  return static_cast<std::int64_t>(unused);
}

CUmemAllocationProp device_memory(bool shareable) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (shareable) p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}
std::int64_t create_handle(std::int64_t bytes) {
  const CUmemAllocationProp p = device_memory(false);
  return cuMemCreate(&kept_handle, static_cast<std::size_t>(bytes), &p, 0);
}
std::int64_t create_shareable(std::int64_t bytes) {
  const CUmemAllocationProp p = device_memory(true);
  return cuMemCreate(&kept_handle, static_cast<std::size_t>(bytes), &p, 0);
}
std::int64_t release_handle(std::int64_t) {
  return cuMemRelease(kept_handle);
}
std::int64_t export_handle(std::int64_t) {
  int fd = -1;
  return cuMemExportToShareableHandle(&fd, kept_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      0) == CUDA_SUCCESS
             ? fd
             : -1;
}
// Opens a descriptor of another process: `where` is its process, and the descriptor below 2^16.
int fd_of_other(std::int64_t where) {
  const std::string path =
      "/proc/" + std::to_string(where >> 16) + "/fd/" + std::to_string(where & 0xffff);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}
std::int64_t import_handle(std::int64_t where) {
  const int fd = fd_of_other(where);
  const CUresult r = cuMemImportFromShareableHandle(
      &kept_handle, reinterpret_cast<void *>(static_cast<std::intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(fd);
  return r;
}

std::int64_t make_pool(std::int64_t) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  int fd = -1;
  return cuMemPoolCreate(&kept_pool, &props) == CUDA_SUCCESS &&
                 cuMemPoolExportToShareableHandle(
                     &fd, kept_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS
             ? fd
             : -1;
}
std::int64_t allocate_from_pool(std::int64_t bytes) {
  const CUresult r =
      cuMemAllocFromPoolAsync(&kept_block, static_cast<std::size_t>(bytes), kept_pool, nullptr);
  return r != CUDA_SUCCESS ? r : cuMemPoolExportPointer(&page->block, kept_block);
}
std::int64_t import_pool_block(std::int64_t where) {
  const int fd = fd_of_other(where);
  const CUresult r = cuMemPoolImportFromShareableHandle(
      &kept_pool, reinterpret_cast<void *>(static_cast<std::intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  close(fd);
  return r != CUDA_SUCCESS ? r : cuMemPoolImportPointer(&kept_block, kept_pool, &page->block);
}

std::int64_t export_block(std::int64_t) {
  return cuIpcGetMemHandle(&page->handle, kept_block);
}
std::int64_t open_block(std::int64_t) {
  return cuIpcOpenMemHandle(&kept_block, page->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
std::int64_t close_block(std::int64_t) {
  return cuIpcCloseMemHandle(kept_block);
}

// ---- The tests. Each runs in a process of its own, which has never called cuInit. ----

class shared_machine : public ::testing::Test {
 protected:
  // Whether this is that process. Otherwise runs the test in it.
  bool in_fresh_process() {
    const char *const name = std::getenv("HOSTCUDA_TEST_MACHINE");
    if (name == nullptr) {
      const auto *const info = ::testing::UnitTest::GetInstance()->current_test_info();
      const std::string test = std::string(info->test_suite_name()) + "." + info->name();
      name_ = "test-" + std::to_string(getpid());
      EXPECT_EQ(run_again(test.c_str(), {"HOSTCUDA_TEST_MACHINE=" + name_}, true), 0);
      unlink(path().c_str());
      return false;
    }
    name_ = name;
    page = static_cast<shared_page *>(mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    configure("profile=h200");
    return true;
  }

  // For workers that are started later, and for this process, which only looks.
  void configure(const std::string &profile, std::size_t memory = kDevice) {
    machine_config = "lazy," + profile + ",memory=" + std::to_string(memory) + ",machine=" + name_;
    ASSERT_EQ(hostcuda_reset(machine_config.c_str()), CUDA_SUCCESS);
  }

  static std::vector<worker> start(std::size_t count) {
    std::vector<worker> out(count);
    for (const worker &w : out) EXPECT_EQ(w.run(join), CUDA_SUCCESS);
    return out;
  }

  // Bytes in use, as a process sees them that takes no part.
  static std::size_t in_use(CUdevice device = 0) {
    hostcuda_device d{};
    EXPECT_EQ(hostcuda_get_device(device, &d), CUDA_SUCCESS);
    EXPECT_EQ(d.used_bytes, 0U);
    EXPECT_LE(d.occupied_bytes, d.total_bytes);
    return d.occupied_bytes;
  }

  static void expect_used(const std::vector<worker> &all, std::size_t bytes) {
    EXPECT_EQ(in_use(), bytes);
    for (const worker &w : all)
      if (w.pid() > 0) {
        EXPECT_EQ(w.run(free_now), static_cast<std::int64_t>(kDevice - bytes));
      }
  }

  static std::int64_t place(const worker &w, std::int64_t fd) {
    EXPECT_GT(fd, 0);
    return static_cast<std::int64_t>(w.pid()) << 16 | fd;
  }

  std::string path() const {
    return "/dev/shm/hostcuda." + std::to_string(geteuid()) + "." + name_;
  }

  std::string name_;
};

TEST_F(shared_machine, AllProcessesFillOneDevice) {
  if (!in_fresh_process()) return;
  for (const std::size_t count : {2U, 8U}) {
    std::vector<worker> all = start(count);
    std::vector<bool> full(count);
    std::size_t sum = 0;
    for (std::size_t left = count; left != 0;) {
      // All at once.
      for (std::size_t i = 0; i < count; ++i)
        if (!full[i]) all[i].start(allocate_block, kPage);
      for (std::size_t i = 0; i < count; ++i) {
        if (full[i]) continue;
        const std::int64_t r = all[i].result();
        if (r == CUDA_SUCCESS) {
          sum += kPage;
          continue;
        }
        EXPECT_EQ(r, CUDA_ERROR_OUT_OF_MEMORY);
        full[i] = true;
        --left;
      }
      ASSERT_LE(sum, kDevice);
    }
    EXPECT_EQ(sum, kDevice);
    expect_used(all, kDevice);
    EXPECT_EQ(all[0].run(free_kept_block), CUDA_SUCCESS);
    expect_used(all, kDevice - kPage);
    EXPECT_EQ(all[1].run(create_handle, 2 * kPage), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(all[1].run(create_handle, kPage), CUDA_SUCCESS);
  }
}

TEST_F(shared_machine, MemoryOfEveryKindCounts) {
  if (!in_fresh_process()) return;
  const std::vector<worker> all = start(2);
  const worker &w = all[0];
  std::size_t used = 0;
  const auto expect_counted = [&](task what, std::size_t bytes) {
    EXPECT_EQ(w.run(what), CUDA_SUCCESS);
    used += bytes;
    expect_used(all, used);
  };
  expect_counted([](std::int64_t) { return allocate_block(3 * MiB); }, 4 * MiB);
  expect_counted([](std::int64_t) { return create_handle(2 * kPage); }, 2 * kPage);
  expect_counted([](std::int64_t) { return create_shareable(kPage); }, kPage);
  expect_counted(
      [](std::int64_t) -> std::int64_t { return cuMemAllocAsync(&kept_block, 5 * MiB, nullptr); },
      6 * MiB);
  expect_counted([](std::int64_t) -> std::int64_t { return cuMemFreeAsync(kept_block, nullptr); },
                 0);  // the pool keeps it
  expect_counted([](std::int64_t) -> std::int64_t { return cuCtxSynchronize(); },
                 std::size_t{0} - 6 * MiB);
  expect_counted(
      [](std::int64_t) -> std::int64_t {
        CUarray array = nullptr;
        CUDA_ARRAY_DESCRIPTOR d{};
        d.Width = 1024;
        d.Height = 2048;
        d.Format = CU_AD_FORMAT_FLOAT;
        d.NumChannels = 1;
        return cuArrayCreate(&array, &d);
      },
      8 * MiB);
  expect_counted(
      [](std::int64_t) -> std::int64_t {
        void *host = nullptr;
        CUdeviceptr managed = 0;
        const CUresult r = cuMemAllocHost(&host, 4 * MiB);
        return r != CUDA_SUCCESS ? r : cuMemAllocManaged(&managed, 4 * MiB, CU_MEM_ATTACH_GLOBAL);
      },
      0);
  expect_counted(release_handle, std::size_t{0} - kPage);
  // The end of a context frees its blocks.
  EXPECT_EQ(w.run([](std::int64_t) -> std::int64_t { return cuDevicePrimaryCtxReset(0); }),
            CUDA_SUCCESS);
  EXPECT_EQ(in_use(), 2 * kPage) << "of cuMemCreate";
}

TEST_F(shared_machine, WhatTheHostRefusesDoesNotCount) {
  if (!in_fresh_process()) return;
  constexpr std::size_t much = std::size_t{64} << 40;  // more than any host has
  configure("profile=h200,backed", much);
  const std::vector<worker> all = start(1);
  EXPECT_EQ(all[0].run(create_handle, much / 2), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(in_use(), 0U);
}

TEST_F(shared_machine, OccupiedMemoryIsOfItsProcessAlone) {
  if (!in_fresh_process()) return;
  const std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run([](std::int64_t) -> std::int64_t { return hostcuda_occupy(0, 10 * kPage); }),
            CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(allocate_block, 20 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(in_use(), 20 * kPage);
  EXPECT_EQ(all[0].run(free_now), static_cast<std::int64_t>(2 * kPage));
  EXPECT_EQ(all[0].run(create_handle, 3 * kPage), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(all[0].run(create_handle, 2 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(create_handle, 10 * kPage), CUDA_SUCCESS);
}

TEST_F(shared_machine, AResetLeavesIt) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run(allocate_block, 4 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(all[0].run(create_shareable, kPage), CUDA_SUCCESS);
  EXPECT_GT(all[0].run(export_handle), 0);
  expect_used(all, 5 * kPage);
  EXPECT_EQ(all[0].run([](std::int64_t) -> std::int64_t { return hostcuda_reset("memory=1G"); }),
            CUDA_SUCCESS);
  EXPECT_EQ(in_use(), 0U);
  EXPECT_EQ(all[1].run(free_now), static_cast<std::int64_t>(kDevice));
  EXPECT_EQ(access(path().c_str(), F_OK), 0);
  EXPECT_EQ(all[1].run([](std::int64_t) -> std::int64_t { return hostcuda_reset("memory=1G"); }),
            CUDA_SUCCESS);
  EXPECT_NE(access(path().c_str(), F_OK), 0) << "the last one deletes the file";
}

TEST_F(shared_machine, WhatAKilledProcessHeldIsFree) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(3);
  EXPECT_EQ(all[0].run(allocate_block, 20 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(create_handle, 10 * kPage), CUDA_SUCCESS);
  expect_used(all, 30 * kPage);
  all[0].end();
  // By the allocation that needs it, and by whoever asks.
  EXPECT_EQ(all[2].run(create_handle, 22 * kPage), CUDA_SUCCESS);
  expect_used(all, 32 * kPage);
  all[1].end();
  expect_used(all, 22 * kPage);
  all[2].end();
  EXPECT_EQ(in_use(), 0U);
}

TEST_F(shared_machine, AStoppedProcessBlocksNobody) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run(allocate_block, 20 * kPage), CUDA_SUCCESS);
  kill(all[0].pid(), SIGSTOP);
  EXPECT_EQ(all[1].run(allocate_block, 13 * kPage), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(all[1].run(allocate_block, 12 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(in_use(), kDevice);
  all[0].end();
  EXPECT_EQ(in_use(), 12 * kPage);
}

// Its copy of the descriptor would keep the lock of the slot.
TEST_F(shared_machine, AForkedChildHoldsNothing) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run(allocate_block, 20 * kPage), CUDA_SUCCESS);
  const std::int64_t child = all[0].run([](std::int64_t) -> std::int64_t {
    const pid_t pid = fork();
    if (pid == 0) {
      hostcuda_device d{};
      const bool sees = hostcuda_get_device(0, &d) == CUDA_SUCCESS && d.used_bytes == 0 &&
                        d.occupied_bytes == 20 * kPage && cuInit(0) != CUDA_SUCCESS;
      if (!sees) _exit(1);
      for (;;) pause();
    }
    return pid;
  });
  ASSERT_GT(child, 0);
  usleep(50000);
  all[0].end();
  EXPECT_EQ(kill(static_cast<pid_t>(child), 0), 0) << "the child has not seen the machine";
  expect_used(all, 0);
  kill(static_cast<pid_t>(child), SIGKILL);
}

// A child that is forked while another thread looks has a copy of that descriptor.
TEST_F(shared_machine, AChildForkedDuringALookLocksNothing) {
  if (!in_fresh_process()) return;
  const std::vector<worker> all = start(1);
  std::atomic<bool> done{false};
  std::thread looks([&] {
    while (!done) in_use();
  });
  std::vector<pid_t> children;
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0)
      for (;;) pause();
    children.push_back(child);
  }
  done = true;
  all[0].start(allocate_block, kPage);
  EXPECT_TRUE(all[0].replies_within(std::chrono::seconds(20)));
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(all[0].result(), CUDA_SUCCESS);
  looks.join();
}

TEST_F(shared_machine, DevicesAreSeparate) {
  if (!in_fresh_process()) return;
  configure("profile=multi:2");
  std::vector<worker> all(2);
  EXPECT_EQ(all[0].run(join, 0), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(join, 1), CUDA_SUCCESS);
  EXPECT_EQ(all[0].run(allocate_block, 32 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(free_now), static_cast<std::int64_t>(kDevice));
  EXPECT_EQ(all[1].run(allocate_block, 30 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(in_use(0), 32 * kPage);
  EXPECT_EQ(in_use(1), 30 * kPage);
  all[0].end();
  EXPECT_EQ(in_use(0), 0U);
  EXPECT_EQ(in_use(1), 30 * kPage);
}

TEST_F(shared_machine, AllNameTheSameDevices) {
  if (!in_fresh_process()) return;
  std::vector<worker> first = start(1);
  configure("profile=h200", 2 * kDevice);
  EXPECT_EQ(worker().run(join), CUDA_ERROR_INVALID_VALUE);
  configure("profile=multi:2");
  EXPECT_EQ(worker().run(join), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(first[0].run(allocate_block, 4 * kPage), CUDA_SUCCESS);
  // What the dead have left is another machine's beginning.
  first[0].end();
  EXPECT_EQ(access(path().c_str(), F_OK), 0);
  worker second;
  EXPECT_EQ(second.run(join), CUDA_SUCCESS);
  EXPECT_EQ(in_use(), 0U);
  EXPECT_EQ(second.run(allocate_block, 32 * kPage), CUDA_SUCCESS);
}

TEST_F(shared_machine, RecordsOfAnEarlierMachineAreGone) {
  if (!in_fresh_process()) return;
  {
    const std::vector<worker> dead = start(1);
    EXPECT_EQ(dead[0].run(create_shareable, 4 * kPage), CUDA_SUCCESS);
    EXPECT_GT(dead[0].run(export_handle), 0);
  }
  std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run(create_shareable, kPage), CUDA_SUCCESS);
  EXPECT_GT(all[0].run(export_handle), 0);
  all[1].end();  // the records are summed up again
  expect_used(all, kPage);
}

// The last process deletes the file while another one waits to join.
TEST_F(shared_machine, ADeletedFileIsNotJoined) {
  if (!in_fresh_process()) return;
  const int fd = open(path().c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  struct flock l {};
  l.l_type = F_WRLCK;
  l.l_len = 1;
  ASSERT_EQ(fcntl(fd, F_OFD_SETLK, &l), 0);
  worker late;
  late.start(join);
  usleep(100000);
  ASSERT_EQ(unlink(path().c_str()), 0);
  l.l_type = F_UNLCK;
  ASSERT_EQ(fcntl(fd, F_OFD_SETLK, &l), 0);
  EXPECT_EQ(late.result(), CUDA_SUCCESS);
  close(fd);
  EXPECT_EQ(late.run(allocate_block, kPage), CUDA_SUCCESS);
  EXPECT_EQ(in_use(), kPage);
}

TEST_F(shared_machine, ANameIsAPartOfAFileName) {
  for (const char *bad : {"machine=", "machine=a/b", "machine=..%", "machine"})
    EXPECT_EQ(hostcuda_reset(bad), CUDA_ERROR_INVALID_VALUE) << bad;
  ASSERT_EQ(hostcuda_reset("machine=A_1-b.c"), CUDA_SUCCESS);
  const char *text = nullptr;
  ASSERT_EQ(hostcuda_config(&text), CUDA_SUCCESS);
  EXPECT_NE(std::strstr(text, ",machine=A_1-b.c"), nullptr);
  ASSERT_EQ(hostcuda_reset("profile=h200"), CUDA_SUCCESS);
}

TEST_F(shared_machine, AFileOfAnotherKindIsRefused) {
  if (!in_fresh_process()) return;
  ASSERT_EQ(symlink((path() + "-target").c_str(), path().c_str()), 0);
  EXPECT_EQ(worker().run(join), CUDA_ERROR_OPERATING_SYSTEM);
  EXPECT_NE(unlink((path() + "-target").c_str()), 0) << "the link was followed";
  ASSERT_EQ(unlink(path().c_str()), 0);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(worker().run(join), CUDA_ERROR_OPERATING_SYSTEM);
  ASSERT_EQ(unlink(path().c_str()), 0);
  close(open(path().c_str(), O_CREAT | O_WRONLY, 0600));
  ASSERT_EQ(chmod(path().c_str(), 0666), 0);
  EXPECT_EQ(worker().run(join), CUDA_ERROR_OPERATING_SYSTEM);
}

TEST_F(shared_machine, TheLastProcessDeletesTheFile) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(2);
  for (worker &w : all) {
    struct stat st {};
    ASSERT_EQ(stat(path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600U);
    w.start([](std::int64_t) -> std::int64_t { std::exit(0); });
    w.wait();
  }
  EXPECT_NE(access(path().c_str(), F_OK), 0);
}

TEST_F(shared_machine, ExportedMemoryCountsOnceUntilItsLastHolderEnds) {
  if (!in_fresh_process()) return;
  constexpr std::int64_t bytes = 4 * kPage;
  std::vector<worker> all = start(4);
  EXPECT_EQ(all[0].run(create_shareable, bytes), CUDA_SUCCESS);
  expect_used(all, bytes);
  const std::int64_t at = place(all[0], all[0].run(export_handle));
  EXPECT_GT(all[0].run(export_handle), 0) << "again";
  expect_used(all, bytes);
  EXPECT_EQ(all[1].run(import_handle, at), CUDA_SUCCESS);
  EXPECT_EQ(all[3].run(allocate_block, kDevice - bytes), CUDA_SUCCESS);
  EXPECT_EQ(all[2].run(import_handle, at), CUDA_SUCCESS) << "needs no room";
  EXPECT_EQ(all[3].run(free_kept_block), CUDA_SUCCESS);
  EXPECT_EQ(all[2].run(import_handle, at), CUDA_SUCCESS);  // a second handle of the same memory
  expect_used(all, bytes);
  EXPECT_EQ(all[2].run(release_handle), CUDA_SUCCESS);
  expect_used(all, bytes);
  all[0].end();
  expect_used(all, bytes);
  EXPECT_EQ(all[1].run(release_handle), CUDA_SUCCESS);
  expect_used(all, bytes);
  EXPECT_EQ(all[3].run(allocate_block, kDevice - bytes + 1), CUDA_ERROR_OUT_OF_MEMORY);
  all[2].end();
  EXPECT_EQ(all[3].run(allocate_block, kDevice), CUDA_SUCCESS);
  expect_used(all, kDevice);
}

TEST_F(shared_machine, AnExportThatCannotBeRecordedFails) {
  if (!in_fresh_process()) return;
  const std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run(create_shareable, 4 * kPage), CUDA_SUCCESS);
  const task export_small = [](std::int64_t bytes) -> std::int64_t {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{static_cast<rlim_t>(bytes), RLIM_INFINITY};
    return setrlimit(RLIMIT_FSIZE, &size) == 0 ? export_handle(0) : -2;
  };
  struct stat st {};
  ASSERT_EQ(stat(path().c_str(), &st), 0);
  EXPECT_EQ(all[0].run(export_small, st.st_size), -1);
  expect_used(all, 4 * kPage);
  EXPECT_GT(all[0].run(export_small, std::int64_t{1} << 40), 0);
  expect_used(all, 4 * kPage);
  EXPECT_EQ(all[0].run(release_handle), CUDA_SUCCESS);
  expect_used(all, 0);
}

TEST_F(shared_machine, AnImporterKeepsWhatTheExporterReleases) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(3);
  EXPECT_EQ(all[0].run(create_shareable, 4 * kPage), CUDA_SUCCESS);
  const std::int64_t at = place(all[0], all[0].run(export_handle));
  EXPECT_EQ(all[1].run(import_handle, at), CUDA_SUCCESS);
  EXPECT_EQ(all[0].run(release_handle), CUDA_SUCCESS);
  expect_used(all, 4 * kPage);
  EXPECT_EQ(all[1].run(release_handle), CUDA_SUCCESS);
  expect_used(all, 0);
  // A descriptor alone holds nothing, so its import needs room.
  EXPECT_EQ(all[2].run(allocate_block, kDevice - 3 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(import_handle, at), CUDA_ERROR_OUT_OF_MEMORY);
  expect_used(all, kDevice - 3 * kPage);
  EXPECT_EQ(all[2].run(free_kept_block), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(import_handle, at), CUDA_SUCCESS);
  expect_used(all, 4 * kPage);
}

TEST_F(shared_machine, BlocksOfLegacyIpcCountOnce) {
  if (!in_fresh_process()) return;
  for (const char *const profile : {"profile=h200", "profile=h200,unbacked"}) {
    configure(profile);
    std::vector<worker> all = start(3);
    EXPECT_EQ(all[0].run(allocate_block, 3 * MiB), CUDA_SUCCESS);
    EXPECT_EQ(all[0].run(export_block), CUDA_SUCCESS);
    EXPECT_EQ(all[1].run(open_block), CUDA_SUCCESS);
    EXPECT_EQ(all[2].run(open_block), CUDA_SUCCESS);
    expect_used(all, 4 * MiB);
    EXPECT_EQ(all[2].run(close_block), CUDA_SUCCESS);
    expect_used(all, 4 * MiB);
    all[0].end();
    expect_used(all, 4 * MiB);
    EXPECT_EQ(all[1].run(close_block), CUDA_SUCCESS);
    expect_used(all, 0);
  }
}

TEST_F(shared_machine, TwoBlocksOfAChunkCountAsTheChunk) {
  if (!in_fresh_process()) return;
  static CUipcMemHandle *const second = &page->second_handle;
  static CUdeviceptr blocks[2];
  std::vector<worker> all = start(2);
  const task export_two = [](std::int64_t) -> std::int64_t {
    for (CUdeviceptr &at : blocks)
      if (cuMemAlloc(&at, MiB / 2) != CUDA_SUCCESS) return -1;
    const CUresult r = cuIpcGetMemHandle(&page->handle, blocks[0]);
    return r != CUDA_SUCCESS ? r : cuIpcGetMemHandle(second, blocks[1]);
  };
  const task open_two = [](std::int64_t) -> std::int64_t {
    constexpr unsigned lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    const CUresult r = cuIpcOpenMemHandle(&blocks[0], page->handle, lazy);
    return r != CUDA_SUCCESS ? r : cuIpcOpenMemHandle(&blocks[1], *second, lazy);
  };
  const task close_one = [](std::int64_t i) -> std::int64_t {
    return cuIpcCloseMemHandle(blocks[i]);
  };
  EXPECT_EQ(all[0].run(export_two), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(open_two), CUDA_SUCCESS);
  expect_used(all, kPage);
  all[0].end();
  expect_used(all, kPage);
  EXPECT_EQ(all[1].run(close_one, 0), CUDA_SUCCESS);
  expect_used(all, kPage);
  EXPECT_EQ(all[1].run(close_one, 1), CUDA_SUCCESS);
  expect_used(all, 0);
}

TEST_F(shared_machine, BlocksOfASharedPoolCountOnce) {
  if (!in_fresh_process()) return;
  std::vector<worker> all = start(3);
  const std::int64_t at = place(all[0], all[0].run(make_pool));
  EXPECT_EQ(all[0].run(allocate_from_pool, 3 * MiB), CUDA_SUCCESS);
  EXPECT_EQ(all[1].run(import_pool_block, at), CUDA_SUCCESS);
  EXPECT_EQ(all[2].run(import_pool_block, at), CUDA_SUCCESS);
  expect_used(all, 4 * MiB);
  all[0].end();
  all[2].end();
  expect_used(all, 4 * MiB);
  EXPECT_EQ(all[1].run(free_kept_block), CUDA_SUCCESS);
  expect_used(all, 0);
}

TEST_F(shared_machine, ProcessesAreListed) {
  if (!in_fresh_process()) return;
  configure("profile=multi:2");
  const std::vector<worker> all = start(2);
  EXPECT_EQ(all[0].run(create_shareable, kPage), CUDA_SUCCESS);
  EXPECT_EQ(all[0].run(allocate_block, kPage), CUDA_SUCCESS);
  EXPECT_GT(all[0].run(export_handle), 0);
  std::vector<std::pair<unsigned, std::size_t>> found;
  const auto add = [](unsigned process, std::size_t bytes, void *user) {
    static_cast<decltype(found) *>(user)->emplace_back(process, bytes);
  };
  EXPECT_EQ(hostcuda_each_process(1, add, &found), CUDA_SUCCESS);
  EXPECT_TRUE(found.empty()) << "no context there";
  EXPECT_EQ(hostcuda_each_process(2, add, &found), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(hostcuda_each_process(0, nullptr, &found), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(hostcuda_each_process(0, add, &found), CUDA_SUCCESS);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].first, static_cast<unsigned>(all[0].pid()));
  EXPECT_EQ(found[0].second, 2 * kPage) << "with what it has exported";
  EXPECT_EQ(found[1].first, static_cast<unsigned>(all[1].pid()));
  EXPECT_EQ(found[1].second, 0U);
  EXPECT_EQ(all[1].run([](std::int64_t) -> std::int64_t { return cuDevicePrimaryCtxRelease(0); }),
            CUDA_SUCCESS);
  found.clear();
  EXPECT_EQ(hostcuda_each_process(0, add, &found), CUDA_SUCCESS);
  EXPECT_EQ(found.size(), 1U);
}

// Allocates, frees, exports and imports until it is killed. Counts less than it has at any time.
std::int64_t storm(std::int64_t argument) {
  const auto self = static_cast<std::size_t>(argument % 8);
  if (join(0) != CUDA_SUCCESS) return 1;
  std::minstd_rand random(static_cast<unsigned>(argument));
  auto &mine = page->storm[self];
  mine.process = getpid();
  struct held {
    std::size_t bytes;
    CUdeviceptr block;
    CUmemGenericAllocationHandle handle;
  };
  std::vector<held> all;
  std::vector<CUmemGenericAllocationHandle> imports;
  for (;;) {
    const std::size_t bytes = (1 + random() % 6) * kPage;
    held h{bytes, 0, 0};
    const unsigned what = random() % 8;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    if (what == 0) {
      const CUmemAllocationProp p = device_memory(true);
      r = cuMemCreate(&h.handle, bytes, &p, 0);
      int fd = 0;
      if (r == CUDA_SUCCESS &&
          cuMemExportToShareableHandle(&fd, h.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                       0) == CUDA_SUCCESS) {
        if (const int before = mine.exported.exchange(fd); before != 0) close(before);
      }
    } else if (what == 1) {
      const auto &other = page->storm[random() % 8];
      CUmemGenericAllocationHandle import = 0;
      const int fd = fd_of_other(static_cast<std::int64_t>(other.process) << 16 | other.exported);
      if (fd >= 0 && cuMemImportFromShareableHandle(
                         &import, reinterpret_cast<void *>(static_cast<std::intptr_t>(fd)),
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS)
        imports.push_back(import);
      if (fd >= 0) close(fd);
      continue;
    } else if (what == 2) {
      for (const CUmemGenericAllocationHandle import : imports) cuMemRelease(import);
      imports.clear();
      continue;
    } else if (what < 5) {
      r = cuMemAlloc(&h.block, bytes);
    } else {
      const CUmemAllocationProp p = device_memory(false);
      r = cuMemCreate(&h.handle, bytes, &p, 0);
    }
    if (r == CUDA_SUCCESS) {
      mine.held += static_cast<std::int64_t>(bytes);
      all.push_back(h);
    } else if (r != CUDA_ERROR_OUT_OF_MEMORY) {
      return 2;
    }
    if (r == CUDA_SUCCESS && random() % 3 != 0) continue;
    for (std::size_t n = random() % 4; n != 0 && !all.empty(); --n) {
      std::swap(all[random() % all.size()], all.back());
      const held last = all.back();
      all.pop_back();
      mine.held -= static_cast<std::int64_t>(last.bytes);
      if ((last.block != 0 ? cuMemFree(last.block) : cuMemRelease(last.handle)) != CUDA_SUCCESS)
        return 3;
    }
  }
}

// What all processes have at one time: none runs meanwhile.
std::int64_t held_by(const std::vector<worker> &all) {
  for (const worker &w : all) {
    kill(w.pid(), SIGSTOP);
    int status = 0;
    EXPECT_EQ(waitpid(w.pid(), &status, WUNTRACED), w.pid());
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  std::int64_t sum = 0;
  for (const auto &each : page->storm) sum += each.held;
  for (const worker &w : all) kill(w.pid(), SIGCONT);
  return sum;
}

TEST_F(shared_machine, KillsLeaveNothingBehind) {
  if (!in_fresh_process()) return;
  std::minstd_rand random(20261201);
  std::vector<worker> all(8);
  std::int64_t seed = 0, most = 0;
  for (const worker &w : all) w.start(storm, seed++);
  for (int kills = 0; kills < 500; ++kills) {
    usleep(random() % 4000);
    EXPECT_LE(in_use(), kDevice);
    const std::size_t i = random() % all.size();
    all[i].end();
    page->storm[i].held = 0;
    page->storm[i].exported = 0;
    all[i].~worker();
    new (&all[i]) worker;
    all[i].start(storm, (++seed << 3) | static_cast<std::int64_t>(i));
    if (kills % 5 == 0) most = std::max(most, held_by(all));
  }
  EXPECT_LE(most, static_cast<std::int64_t>(kDevice));
  EXPECT_GT(most, static_cast<std::int64_t>(kDevice / 2)) << "the device was hardly used";
  all.clear();
  EXPECT_EQ(in_use(), 0U);
  worker last;
  EXPECT_EQ(last.run(join), CUDA_SUCCESS);
  EXPECT_EQ(last.run(allocate_block, kDevice), CUDA_SUCCESS);
}

}  // namespace
}  // namespace hostcuda_tests
