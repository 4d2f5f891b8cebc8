// A program that works on device memory all the time, for tests that suspend it. It reads commands from stdin, a line
// each, and answers each with a line.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>

#include "tests/preload/clients/operated_trouble.h"
#include "tests/preload/clients/semantics.h"

void *operator new(std::size_t bytes) {
  return client::allocate(bytes, __builtin_return_address(0));
}
void operator delete(void *at) noexcept {
  std::free(at);
}
void operator delete(void *at, std::size_t) noexcept {
  std::free(at);
}

namespace client {
namespace {

constexpr std::size_t block_bytes = 3 << 20;
constexpr unsigned char constant_byte = 0xA5;

// A thread that writes a block and reads it back.
class worker {
 public:
  explicit worker(CUcontext context) : context_(context) {}
  int start() {
    CLIENT_CHECK(cuCtxSetCurrent(context_));
    CLIENT_EXPECT((block_ = block_of(block_bytes)) != 0);
    thread_ = std::thread([this] { run(); });
    while (!is_set_up_) pause(1);  // none of its calls is under way when one is to fail
    return 0;
  }
  void finish() {
    leave = true;
    thread_.join();
  }
  void set_working(bool on) {
    working = on;
    while (!on && busy) pause(1);
  }
  std::uint64_t rounds() const { return rounds_; }
  int errors() const { return errors_; }
  CUcontext context() const { return context_; }

 private:
  void run() {
    if (cuCtxSetCurrent(context_) != CUDA_SUCCESS) ++errors_;
    const CUstream s = new_stream();
    is_set_up_ = true;
    for (unsigned char value = 1; !leave; ++value) {
      busy = true;
      if (!working) {
        busy = false;
        pause(1);
        continue;
      }
      CUdeviceptr more = 0;
      const bool right = cuMemsetD8Async(block_, value, block_bytes, s) == CUDA_SUCCESS &&
                         cuMemAllocAsync(&more, 64 << 10, s) == CUDA_SUCCESS &&
                         cuStreamSynchronize(s) == CUDA_SUCCESS &&
                         holds(block_ + value, 4096, value) &&
                         cuMemFreeAsync(more, s) == CUDA_SUCCESS;
      if (!right) ++errors_;
      ++rounds_;
    }
    busy = false;
  }

  const CUcontext context_;
  CUdeviceptr block_ = 0;
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<int> errors_{0};
  std::atomic<bool> is_set_up_{false}, working{false}, busy{false}, leave{false};
  std::thread thread_;
};

std::uint64_t rounds_of(const std::vector<std::unique_ptr<worker>> &all) {
  std::uint64_t sum = 0;
  for (const auto &w : all) sum += w->rounds();
  return sum;
}

std::string text_of(const CUipcMemHandle &handle) {
  std::string text;
  for (const char c : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}
CUipcMemHandle handle_of(const std::string &text) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

int operate(int devices, int first) {
  CLIENT_CHECK(cuInit(0));
  std::vector<std::unique_ptr<worker>> workers;
  CUdeviceptr constant = 0;
  for (int ordinal = first; ordinal < first + devices; ++ordinal) {
    if (const int failed = use_device(ordinal)) return failed;
    CUcontext context = nullptr;
    CLIENT_CHECK(cuCtxGetCurrent(&context));
    for (int i = 0; i < 2; ++i) {
      workers.push_back(std::make_unique<worker>(context));
      if (const int failed = workers.back()->start()) return failed;
    }
  }
  CLIENT_CHECK(cuCtxSetCurrent(workers[0]->context()));
  CLIENT_EXPECT((constant = block_of(block_bytes)) != 0);
  CLIENT_CHECK(cuMemsetD8(constant, constant_byte, block_bytes));
  CUdeviceptr opened = 0;
  CUcontext other_context = nullptr;
  const CUstream held = new_stream();
  CUstream capturing = nullptr;
  std::atomic<std::uint64_t> host_rounds{0};
  std::atomic<bool> leave{false};
  std::thread host_thread([&] {
    while (!leave) {
      ++host_rounds;
      pause(1);
    }
  });
  std::thread in_a_call;
  const auto finish = [&] {
    leave = true;
    host_thread.join();
    for (auto &w : workers) w->finish();
    if (in_a_call.joinable()) in_a_call.join();
  };
  // As of a library with statics, which saves what it has.
  static const CUdeviceptr saved_at_exit = constant;
  static const pid_t program = ::getpid();
  std::atexit([] {
    if (::getpid() != program) return;
    unsigned char byte = 0;
    cuMemcpyDtoH(&byte, saved_at_exit, 1);
    if (byte == 0 || !holds(saved_at_exit, block_bytes, byte)) ::_exit(3);
  });
  using fail_function = CUresult(const char *, std::uint64_t, CUresult);
  using before_function = CUresult(const char *, std::uint64_t, void (*)(void *), void *);
  using fired_function = CUresult(std::uint64_t *);
  trouble others(workers[0]->context(), constant);
  std::cout << "ready " << constant << ' ' << block_bytes << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (const auto found = others.commands().find(command); found != others.commands().end()) {
      std::cout << found->second(words) << std::endl;
    } else if (command == "work" || command == "rest") {
      for (auto &w : workers) w->set_working(command == "work");
      std::cout << "ok" << std::endl;
    } else if (command == "rounds") {
      std::cout << rounds_of(workers) << std::endl;
    } else if (command == "host_rounds") {
      std::cout << host_rounds << std::endl;
    } else if (command == "errors") {
      int errors = 0;
      for (const auto &w : workers) errors += w->errors();
      std::cout << errors << std::endl;
    } else if (command == "constant") {
      std::cout << (holds(constant, block_bytes, constant_byte) ? "right" : "wrong") << std::endl;
    } else if (command == "export") {  // the constant block
      CUipcMemHandle handle{};
      CLIENT_CHECK(cuIpcGetMemHandle(&handle, constant));
      std::cout << text_of(handle) << std::endl;
    } else if (command == "open") {  // another program's
      std::string text;
      words >> text;
      const CUresult r =
          cuIpcOpenMemHandle(&opened, handle_of(text), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      std::cout << static_cast<int>(r) << std::endl;
    } else if (command == "opened") {
      std::cout << (holds(opened, block_bytes, constant_byte) ? "right" : "wrong") << std::endl;
    } else if (command == "close") {
      std::cout << static_cast<int>(cuIpcCloseMemHandle(opened)) << std::endl;
    } else if (command == "write" || command == "holds") {  // another byte in its place
      int value = 0;
      words >> value;
      const auto byte = static_cast<unsigned char>(value);
      if (command == "write") CLIENT_CHECK(cuMemsetD8(constant, byte, block_bytes));
      std::cout << (holds(constant, block_bytes, byte) ? "right" : "wrong") << std::endl;
    } else if (command == "allocate") {  // blocks that stay
      std::size_t blocks = 0;
      words >> blocks;
      for (std::size_t i = 0; i < blocks; ++i) CLIENT_EXPECT(block_of(block_bytes) != 0);
      std::cout << "ok" << std::endl;
    } else if (command == "free") {  // bytes of the device, as the driver says
      std::size_t free_bytes = 0, total = 0;
      CLIENT_CHECK(cuMemGetInfo(&free_bytes, &total));
      std::cout << free_bytes << std::endl;
    } else if (command == "fail" || command == "die") {  // at the Nth next call, whoever makes it
      std::uint64_t n = 0;
      words >> n;
      if (command == "fail") {
        hostcuda<fail_function>("hostcuda_fail")(nullptr, n, CUDA_ERROR_UNKNOWN);
      } else {
        hostcuda<before_function>("hostcuda_before")(
            nullptr, n, [](void *) { ::kill(::getpid(), SIGKILL); }, nullptr);
      }
      std::cout << "ok" << std::endl;
    } else if (command == "fired") {
      std::uint64_t fired = 0;
      hostcuda<fired_function>("hostcuda_faults_fired")(&fired);
      hostcuda<fail_function>("hostcuda_fail")(nullptr, 0, CUDA_SUCCESS);
      std::cout << fired << std::endl;
    } else if (command == "queue") {  // work that does not end
      hold(held);
      CLIENT_CHECK(cuMemsetD8Async(constant, constant_byte, block_bytes, held));
      std::cout << "ok" << std::endl;
    } else if (command == "queue_in_context") {  // of another context
      std::string symbol;
      words >> symbol;
      CLIENT_CHECK(create_context(&other_context, 0, symbol.c_str()));
      const CUstream s = new_stream();
      hold(s);
      CLIENT_CHECK(cuMemsetD8Async(constant, constant_byte, block_bytes, s));
      CLIENT_CHECK(cuCtxSetCurrent(workers[0]->context()));
      std::cout << reinterpret_cast<std::uintptr_t>(s) << std::endl;
    } else if (command == "wait") {  // in a call that does not end
      in_a_call = std::thread([&] {
        cuCtxSetCurrent(workers[0]->context());
        cuStreamSynchronize(held);
      });
      pause(50);
      std::cout << "ok" << std::endl;
    } else if (command == "end_queue") {
      std::uintptr_t stream = 0;
      words >> stream;
      release(stream != 0 ? reinterpret_cast<CUstream>(stream) : held);
      std::cout << "ok" << std::endl;
    } else if (command == "capture") {
      capturing = new_stream();
      CLIENT_CHECK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
      CLIENT_CHECK(cuMemsetD8Async(constant, constant_byte, block_bytes, capturing));
      std::cout << "ok" << std::endl;
    } else if (command == "end_capture") {
      CUgraph graph = nullptr;
      CLIENT_CHECK(cuStreamEndCapture(capturing, &graph));
      CLIENT_CHECK(cuGraphDestroy(graph));
      std::cout << "ok" << std::endl;
    } else if (command == "fork") {  // a child that ends by exit()
      const pid_t child = ::fork();
      if (child == 0) std::exit(cuCtxSynchronize() == CUDA_SUCCESS ? 1 : 0);
      int status = -1;
      ::waitpid(child, &status, 0);
      std::cout << status << std::endl;
    } else if (command == "exit") {  // at once, while threads are in calls
      std::exit(0);
    }
  }
  finish();
  return 0;
}

}  // namespace
}  // namespace client

int main(int count, char **words) {
  return client::operate(count > 1 ? std::atoi(words[1]) : 1, count > 2 ? std::atoi(words[2]) : 0);
}
