// The client of current_device_test: contexts become current and end in every way, in two threads, and each request is
// for the device that the driver says is current. current_device SEED
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <random>

#include "tests/preload/clients/semantics.h"

namespace client {
namespace {

// One block where a context is current, and the driver's refusal where none is.
int check() {
  CUdevice device = -1;
  const CUresult current = cuCtxGetDevice(&device);
  CUdeviceptr block = 0;
  const CUresult r = cuMemAlloc(&block, 1000);
  if (current != CUDA_SUCCESS) {
    CLIENT_EXPECT(r != CUDA_SUCCESS);
    return 0;
  }
  CLIENT_CHECK(r);
  int ordinal = -1;
  CLIENT_CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block));
  CLIENT_EXPECT(ordinal == device);
  CLIENT_CHECK(cuMemFree(block));
  return 0;
}

// Runs what it is given, one after the other.
class worker {
 public:
  int run(std::function<int()> task) {
    std::unique_lock lock(mutex_);
    task_ = std::move(task);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !task_; });
    return result_;
  }
  ~worker() {
    run([this] {
      ends_ = true;
      return 0;
    });
    thread_.join();
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      changed_.wait(lock, [&] { return static_cast<bool>(task_); });
      result_ = task_();
      task_ = nullptr;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<int()> task_;
  int result_ = 0;
  bool ends_ = false;
  std::thread thread_{[this] { loop(); }};
};

int all(unsigned seed) {
  CLIENT_CHECK(cuInit(0));
  int devices = 0;
  CLIENT_CHECK(cuDeviceGetCount(&devices));
  std::vector<CUcontext> contexts{nullptr};
  for (int d = 0; d < devices; ++d) {
    CUcontext primary = nullptr;
    CLIENT_CHECK(cuDevicePrimaryCtxRetain(&primary, d));
    contexts.push_back(primary);
  }
  const std::size_t lasting = contexts.size();
  std::mt19937 random(seed);
  worker threads[2];
  for (int step = 0; step < 600; ++step) {
    worker &one = threads[random() % 2];
    const CUcontext any = contexts[random() % contexts.size()];
    const auto device = static_cast<CUdevice>(random() % static_cast<unsigned>(devices));
    switch (random() % 6) {
      case 0:
        CLIENT_CHECK(one.run([&] { return cuCtxSetCurrent(any); }));
        break;
      case 1:
        if (any != nullptr) CLIENT_CHECK(one.run([&] { return cuCtxPushCurrent(any); }));
        break;
      case 2:
        one.run([&] {
          CUcontext popped = nullptr;
          return cuCtxPopCurrent(&popped);
        });
        break;
      case 3: {
        CUcontext made = nullptr;
        CLIENT_CHECK(one.run([&] { return create_context(&made, device); }));
        contexts.push_back(made);
        break;
      }
      case 4:
        if (contexts.size() > lasting) {
          std::swap(contexts[lasting + random() % (contexts.size() - lasting)], contexts.back());
          CLIENT_CHECK(one.run([&] { return cuCtxDestroy(contexts.back()); }));
          contexts.pop_back();
        }
        break;
      default: {
        // Retained by the allocator, or not at all.
        CUcontext primary = nullptr;
        CLIENT_CHECK(one.run([&] { return cuDevicePrimaryCtxRetain(&primary, device); }));
        CLIENT_CHECK(one.run([&] { return cuDevicePrimaryCtxRelease(device); }));
        break;
      }
    }
    for (worker &w : threads) CLIENT_CHECK(w.run(check));
  }
  return 0;
}

}  // namespace
}  // namespace client

int main(int, char **words) {
  return client::all(static_cast<unsigned>(std::atoi(words[1])));
}
