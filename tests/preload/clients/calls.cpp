// Calls every function of the driver's table with arguments that mean nothing, each in a process of its own, and
// prints what came of it: calls SEED. Seed 0: all arguments are zero.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <tuple>
#include <utility>

#include "preload/functions/driver_functions.h"
#include "tests/preload/clients/memory_user.h"

namespace {

struct location {
  std::uint32_t type, id;
};
struct bytes_64 {
  unsigned char bytes[64];
};
using word = std::uint64_t;
using number = std::uint32_t;

std::mt19937 *draw = nullptr;  // null: zeros
// A block that the program has. Not one that it has freed: its memory is still there, for the allocator.
word live = 0;
// Where pointers point that are no device memory. The pages around them cannot be read.
unsigned char *host = nullptr;

template <class T>
T argument() {
  if constexpr (std::is_same_v<T, location>) {
    return draw != nullptr ? location{argument<number>(), argument<number>()} : location{0, 0};
  } else if constexpr (std::is_same_v<T, bytes_64>) {
    return {};
  } else if constexpr (std::is_floating_point_v<T>) {
    return draw != nullptr ? T(1.5) : T(0);
  } else if (draw == nullptr) {
    return 0;
  } else if constexpr (std::is_same_v<T, number>) {
    constexpr number some[] = {0, 1, 2, 7, 255, 0x7fffffff, 0xffffffff};
    return some[(*draw)() % std::size(some)];
  } else {
    const word some[] = {0,
                         1,
                         2,
                         64,
                         4096,
                         word{1} << 40,
                         ~word{0},
                         reinterpret_cast<word>(host),
                         reinterpret_cast<word>(host) + 512,
                         0x7f0000001000,
                         live,
                         live + 100};
    return some[(*draw)() % std::size(some)];
  }
}

template <class... Types>
int call(void *function, const std::tuple<Types...> *) {
  const std::tuple<Types...> all{argument<Types>()...};
  return std::apply([&](auto... a) { return reinterpret_cast<int (*)(Types...)>(function)(a...); },
                    all);
}
template <class... Types>
std::tuple<Types...> *types_of(int (*)(Types...));

struct row {
  const char *symbol;
  int (*call)(void *function);
};
#define ROW(symbol, name, since, stream, waits, parameters, arguments)               \
  {#symbol, [](void *f) {                                                            \
     return call(f, decltype(types_of(std::declval<int(*) parameters>())){nullptr}); \
   }},
constexpr row rows[] = {STILLMAP_DRIVER_FUNCTIONS(ROW)};

// What a child does; its exit status is 0 where it printed the code.
void call_one(const row &r, void *function, bool initialised) {
  ::alarm(20);
  if (initialised) {
    CUcontext context = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
      ::_exit(90);
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS) ::_exit(91);
    // So that an allocator exists.
    CUdeviceptr at = 0;
    if (cuMemAlloc(&at, 100000) != CUDA_SUCCESS) ::_exit(92);
    live = at;
  }
  const int code = r.call(function);
  std::printf("%s %d\n", r.symbol, code);
  std::fflush(stdout);
  ::_exit(0);
}

}  // namespace

int main(int, char **words) {
  const auto seed = static_cast<unsigned>(std::atoi(words[1]));
  auto *const pages = static_cast<unsigned char *>(
      ::mmap(nullptr, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  host = pages + 4096;
  ::mprotect(host, 4096, PROT_READ | PROT_WRITE);
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  for (const row &r : rows) {
    void *const function = ::dlsym(driver, r.symbol);
    if (function == nullptr) {
      std::printf("%s is missing\n", r.symbol);
      continue;
    }
    for (const bool initialised : {false, true}) {
      std::mt19937 random(seed * 1000003U + static_cast<unsigned>(&r - rows));
      draw = seed == 0 ? nullptr : &random;
      std::fflush(stdout);
      const pid_t child = ::fork();
      if (child == 0) call_one(r, function, initialised);
      int status = 0;
      ::waitpid(child, &status, 0);
      if (WIFSIGNALED(status)) std::printf("%s ends by signal %d\n", r.symbol, WTERMSIG(status));
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        std::printf("%s exits %d\n", r.symbol, WEXITSTATUS(status));
    }
  }
  return 0;
}
