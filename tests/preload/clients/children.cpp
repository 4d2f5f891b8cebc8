// The client of preload_children_test: processes that a program starts, and programs that never use CUDA.
#include <dirent.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/preload/clients/semantics.h"

extern char **environ;

namespace {

int entries(const char *folder) {
  int n = 0;
  if (DIR *const d = ::opendir(folder)) {
    while (::readdir(d) != nullptr) ++n;
    ::closedir(d);
  }
  return n;
}

int status_of(pid_t child) {
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int no_cuda() {
  std::printf("threads %d descriptors %d\n", entries("/proc/self/task"), entries("/proc/self/fd"));
  CLIENT_EXPECT(::dlsym(RTLD_DEFAULT, "no_such_function") == nullptr);
  CLIENT_EXPECT(::dlopen("libno_such_library.so", RTLD_NOW) == nullptr);
  CLIENT_EXPECT(::dlerror() != nullptr);
  // Nothing has the driver, so nobody finds it here.
  CLIENT_EXPECT(::dlsym(RTLD_DEFAULT, "cuInit") == nullptr);
  CLIENT_EXPECT(::dlerror() != nullptr);
  CLIENT_EXPECT(::dlsym(RTLD_NEXT, "cuMemAlloc_v2") == nullptr);
  CLIENT_EXPECT(::dlsym(::dlopen(nullptr, RTLD_NOW), "cuMemAlloc_v2") == nullptr);
  return 0;
}

// What is loaded for one library only is not in the program's scope.
int local_driver() {
  void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CLIENT_EXPECT(driver != nullptr);
  CLIENT_EXPECT(::dlsym(RTLD_DEFAULT, "cuInit") == nullptr);
  CLIENT_EXPECT(::dlsym(RTLD_NEXT, "cuInit") == nullptr);
  CLIENT_EXPECT(::dlsym(driver, "cuInit") != nullptr);
  CLIENT_EXPECT(::dlsym(driver, "cuNoSuchFunction") == nullptr);
  return 0;
}

using init = CUresult(unsigned);
using allocate = CUresult(CUdeviceptr *, std::size_t);
using release = CUresult(CUdeviceptr);

// The functions, looked up: this program is not linked to the driver.
struct found {
  void *driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  driver_pointers d;
  bool all = d.look_up([this](const char *name) { return ::dlsym(driver, name); });
};

int forked(const char *way) {
  found f;
  CLIENT_EXPECT(f.all);
  CLIENT_CHECK(use_memory(f.d));
  CUdeviceptr block = 0;
  CLIENT_CHECK(f.d.cuMemAlloc_v2(&block, 1000));
  std::fflush(stdout);
  const bool outlives = std::strcmp(way, "outlives") == 0;
  const pid_t child = ::fork();
  if (child == 0) {
    if (outlives) {
      while (::getppid() != 1 && ::getenv("PARENT") != nullptr &&
             std::to_string(::getppid()) == ::getenv("PARENT")) {
        client::pause(1);
      }
      client::pause(50);
      std::exit(0);
    }
    CUdeviceptr at = 0;
    std::size_t a = 0, b = 0;
    std::printf("allocate %d\n", static_cast<int>(f.d.cuMemAlloc_v2(&at, 10)));
    std::printf("free %d\n", static_cast<int>(f.d.cuMemFree_v2(block)));
    std::printf("info %d\n", static_cast<int>(f.d.cuMemGetInfo_v2(&a, &b)));
    std::exit(0);
  }
  CLIENT_EXPECT(outlives || status_of(child) == 0);
  CLIENT_CHECK(f.d.cuMemFree_v2(block));
  return 0;
}

int executed(const char *program, bool spawn) {
  char *words[] = {const_cast<char *>(program), nullptr};
  pid_t child = -1;
  if (spawn) {
    CLIENT_CHECK(::posix_spawn(&child, program, nullptr, nullptr, words, environ));
  } else {
    child = ::fork();
    if (child == 0) {
      ::execv(program, words);
      ::_exit(99);
    }
  }
  CLIENT_EXPECT(status_of(child) == 0);
  return 0;
}

}  // namespace

int main(int count, char **words) {
  const std::string way = words[1];
  if (way == "no_cuda") return no_cuda();
  if (way == "local_driver") return local_driver();
  if (way == "outlives") {
    ::setenv("PARENT", std::to_string(::getpid()).c_str(), 1);
    return forked("outlives");
  }
  if (way == "forked") return forked("forked");
  if (count > 2) return executed(words[2], way == "spawned");
  return 2;
}
