// libstillmap_c.so.0, loaded as other languages load it: what it exports, two of it in one process, and a process that
// forks, that ends, and whose driver is gone.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/c_api/world.h"
#include "tests/support/effort.h"
#include "tests/support/hostcuda_control.h"
#include "tests/support/unique_name.h"

namespace stillmap::testing {
namespace {

[[noreturn]] void stop_at(int line, const std::string &what) {
  std::fprintf(stderr, "line %d: %s\n", line, what.c_str());
  std::fflush(stderr);
  _exit(1);
}
#define NEED(condition, what) \
  if (!(condition)) stop_at(__LINE__, std::string(#condition ": ") + (what))

std::string library_path() {
#ifdef STILLMAP_C_BUILT
  return STILLMAP_C_BUILT;
#else
  return std::filesystem::absolute("c_api/libstillmap_c.so.0").string();
#endif
}

// The functions that these tests need.
struct c_library {
  explicit c_library(const std::string &path = library_path())
      : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    NEED(handle != nullptr, dlerror());
    open = find<decltype(&stillmap_device_open)>("stillmap_device_open");
    close = find<decltype(&stillmap_device_close)>("stillmap_device_close");
    create = find<decltype(&stillmap_allocator_create)>("stillmap_allocator_create");
    destroy = find<decltype(&stillmap_allocator_destroy)>("stillmap_allocator_destroy");
    allocate = find<decltype(&stillmap_allocator_allocate)>("stillmap_allocator_allocate");
    free = find<decltype(&stillmap_allocator_free)>("stillmap_allocator_free");
    empty_cache = find<decltype(&stillmap_allocator_empty_cache)>("stillmap_allocator_empty_cache");
    message = find<decltype(&stillmap_error_message)>("stillmap_error_message");
    buffer_create = find<decltype(&stillmap_buffer_create)>("stillmap_buffer_create");
    buffer_resize = find<decltype(&stillmap_buffer_resize)>("stillmap_buffer_resize");
    buffer_destroy = find<decltype(&stillmap_buffer_destroy)>("stillmap_buffer_destroy");
  }
  template <class Function>
  Function find(const char *name) const {
    void *const symbol = dlvsym(handle, name, "STILLMAP_C_0");
    NEED(symbol != nullptr, name);
    return reinterpret_cast<Function>(symbol);
  }

  void *handle;
  decltype(&stillmap_device_open) open;
  decltype(&stillmap_device_close) close;
  decltype(&stillmap_allocator_create) create;
  decltype(&stillmap_allocator_destroy) destroy;
  decltype(&stillmap_allocator_allocate) allocate;
  decltype(&stillmap_allocator_free) free;
  decltype(&stillmap_allocator_empty_cache) empty_cache;
  decltype(&stillmap_error_message) message;
  decltype(&stillmap_buffer_create) buffer_create;
  decltype(&stillmap_buffer_resize) buffer_resize;
  decltype(&stillmap_buffer_destroy) buffer_destroy;
};

struct opened {
  c_library *of = nullptr;
  stillmap_device *device = nullptr;
  stillmap_allocator *allocator = nullptr;
  stillmap_buffer *buffer = nullptr;
  std::vector<void *> blocks;

  void *block(std::size_t bytes) {
    void *made = nullptr;
    NEED(of->allocate(allocator, bytes, nullptr, nullptr, &made) == STILLMAP_OK, of->message());
    return made;
  }
};

opened open_all(c_library &l) {
  opened o;
  o.of = &l;
  NEED(l.open(0, &o.device) == STILLMAP_OK, l.message());
  NEED(l.create(o.device, nullptr, &o.allocator) == STILLMAP_OK, l.message());
  NEED(l.buffer_create(o.device, nullptr, &o.buffer) == STILLMAP_OK, l.message());
  NEED(l.buffer_resize(o.buffer, 100) == STILLMAP_OK, l.message());
  return o;
}
void close_all(opened &o) {
  NEED(o.of->buffer_destroy(o.buffer) == STILLMAP_OK, o.of->message());
  NEED(o.of->destroy(o.allocator) == STILLMAP_OK, o.of->message());
  NEED(o.of->close(o.device) == STILLMAP_OK, o.of->message());
}

// Never destroyed: for what outlives the destructors of statics.
c_library &kept_library() {
  static auto *const kept = new c_library;
  return *kept;
}

// Each case is a process of its own.
class c_library_lifetime : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (::testing::internal::InDeathTestChild()) return;
    if (!hostcuda_control::available()) GTEST_SKIP() << "needs hostcuda's switches";
  }
};
#define IN_PROCESS(scenario) \
  EXPECT_EXIT(               \
      {                      \
        scenario();          \
        std::exit(0);        \
      },                     \
      ::testing::ExitedWithCode(0), "")

std::string output_of(const std::string &command) {
  FILE *const pipe = popen(command.c_str(), "r");
  std::string text;
  if (pipe == nullptr) return text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  pclose(pipe);
  return text;
}

TEST_F(c_library_lifetime, exports_what_its_map_names_and_nothing_else) {
  if (std::system("nm --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no nm";
  std::istringstream lines(output_of("nm -D --defined-only '" + library_path() + "'"));
  std::vector<std::string> names;
  for (std::string address, kind, name; lines >> address >> kind >> name;) {
    const std::size_t at = name.find("@@STILLMAP_C_0");
    if (kind == "T") {
      EXPECT_NE(at, std::string::npos) << name;
      names.push_back(name.substr(0, at));
    } else {
      EXPECT_TRUE(kind == "A" && name.starts_with("STILLMAP_C_0")) << kind << " " << name;
    }
  }
  std::vector<std::string> expected = exported_functions();
  std::sort(names.begin(), names.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names, expected);
}

TEST_F(c_library_lifetime, has_a_versioned_name_and_needs_no_cuda) {
  if (std::system("readelf --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no readelf";
  const std::string text = output_of("readelf -dW '" + library_path() + "'");
  EXPECT_NE(text.find("Library soname: [libstillmap_c.so.0]"), std::string::npos) << text;
  EXPECT_NE(text.find("NODELETE"), std::string::npos) << text;
  EXPECT_EQ(text.find("libcud"), std::string::npos) << text;
}

TEST_F(c_library_lifetime, is_called_by_ctypes) {
  if (!sanitizer().empty()) GTEST_SKIP() << "Python is not built with a sanitizer";
  if (std::system("python3 -c 'import ctypes' 2>/dev/null") != 0) GTEST_SKIP() << "no Python";
  const std::string text =
      output_of("python3 examples/c_api_ctypes.py '" + library_path() + "' 2>&1");
  EXPECT_TRUE(text.ends_with("ok\n")) << text;
  EXPECT_NE(text.find("stillmap_buffer_resize"), std::string::npos) << text;
}

// Two libraries with a Stillmap each, and the Stillmap of this program.
TEST_F(c_library_lifetime, two_in_one_process_share_nothing) {
  const auto scenario = [] {
    const auto folder = std::filesystem::temp_directory_path() / unique_name("stillmap-two");
    std::filesystem::create_directory(folder);
    const std::string copy = (folder / "libstillmap_c.so.0").string();
    std::filesystem::copy_file(library_path(), copy);
    c_library one, two(copy);
    std::filesystem::remove_all(folder);
    NEED(reinterpret_cast<void *>(one.open) != reinterpret_cast<void *>(two.open), "one library");
    opened a = open_all(one), b = open_all(two);
    void *const from_a = a.block(1 << 20), *const from_b = b.block(1 << 20);
    NEED(from_a != from_b, "one block");
    NEED(one.free(a.allocator, from_b) == STILLMAP_INVALID_ARGUMENT, "a block of the other");
    NEED(std::strlen(two.message()) == 0, two.message());
    NEED(one.free(a.allocator, from_a) == STILLMAP_OK, one.message());
    close_all(a);
    NEED(two.free(b.allocator, from_b) == STILLMAP_OK, two.message());
    c_world here(false);
    NEED(stillmap_buffer_resize(here.buffer, 2 * here.page) == STILLMAP_OK, c_message());
    close_all(b);
    dlclose(two.handle);
  };
  IN_PROCESS(scenario);
}

opened &left_over() {
  static auto *const kept = new opened;
  return *kept;
}

// This handler was registered before the library was there, so it runs after all of the library's own.
TEST_F(c_library_lifetime, is_used_and_ended_after_static_destructors) {
  const auto scenario = [] {
    std::atexit([] {
      opened &o = left_over();
      NEED(o.of->free(o.allocator, o.blocks[0]) == STILLMAP_OK, o.of->message());
      NEED(o.of->free(o.allocator, o.blocks[0]) == STILLMAP_INVALID_ARGUMENT, "freed twice");
      NEED(o.of->buffer_resize(nullptr, 1) == STILLMAP_INVALID_ARGUMENT, "no buffer");
      NEED(std::strlen(o.of->message()) != 0, "no message");
      o.of->empty_cache(o.allocator, nullptr);
      o.of->buffer_resize(o.buffer, 100 << 20);
      o.of->buffer_destroy(o.buffer);
      o.of->destroy(o.allocator);
      o.of->close(o.device);
    });
    left_over() = open_all(kept_library());
    for (int i = 0; i < 4; ++i) left_over().blocks.push_back(left_over().block(3 << 20));
  };
  IN_PROCESS(scenario);
}

TEST_F(c_library_lifetime, may_be_left_open_at_exit) {
  const auto scenario = [] {
    opened o = open_all(kept_library());
    o.block(1 << 20);
    std::thread([&] { o.block(1 << 20); }).join();
  };
  IN_PROCESS(scenario);
}

TEST_F(c_library_lifetime, outlives_its_driver) {
  const auto scenario = [] {
    opened o = open_all(kept_library());
    void *const block = o.block(1 << 20);
    hostcuda_control::fail_from(nullptr, 1, CUDA_ERROR_DEINITIALIZED);
    NEED(o.of->free(o.allocator, block) == STILLMAP_OK, o.of->message());
    void *made = nullptr;
    NEED(o.of->allocate(o.allocator, 100 << 20, nullptr, nullptr, &made) != STILLMAP_OK, "memory");
    NEED(std::strstr(o.of->message(), "shutting down") != nullptr, o.of->message());
    NEED(o.of->buffer_resize(o.buffer, 100 << 20) != STILLMAP_OK, "memory");
    close_all(o);
    std::_Exit(0);
  };
  IN_PROCESS(scenario);
}

// Forked while other threads use the library.
TEST_F(c_library_lifetime, a_forked_child_is_refused_and_never_waits) {
  const auto scenario = [] {
    c_library l;
    opened o = open_all(l);
    void *const block = o.block(1 << 20);
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (!done) {
          l.free(o.allocator, o.block(1 << 20));
          l.empty_cache(o.allocator, nullptr);
          stillmap_device *other = nullptr;
          l.open(0, &other);
          l.close(other);
        }
      });
    }
    for (int i = 0; i < 10; ++i) {
      const pid_t pid = ::fork();
      NEED(pid >= 0, "fork");
      if (pid == 0) {
        alarm(30);
        void *made = nullptr;
        stillmap_device *device = nullptr;
        NEED(l.allocate(o.allocator, 512, nullptr, nullptr, &made) == STILLMAP_NOT_SUPPORTED, "");
        NEED(std::strstr(l.message(), "forked") != nullptr, l.message());
        NEED(l.open(0, &device) == STILLMAP_NOT_SUPPORTED, l.message());
        NEED(l.free(o.allocator, block) == STILLMAP_NOT_SUPPORTED, l.message());
        NEED(l.buffer_resize(o.buffer, 1) == STILLMAP_NOT_SUPPORTED, l.message());
        close_all(o);
        _exit(0);
      }
      int state = 0;
      while (waitpid(pid, &state, 0) < 0 && errno == EINTR) {
      }
      NEED(WIFEXITED(state) && WEXITSTATUS(state) == 0, std::to_string(state));
    }
    done = true;
    for (std::thread &t : threads) t.join();
    NEED(l.free(o.allocator, block) == STILLMAP_OK, l.message());
    close_all(o);
  };
  IN_PROCESS(scenario);
}

TEST_F(c_library_lifetime, a_child_may_be_the_first_to_use_it) {
  const auto scenario = [] {
    c_library l;
    const pid_t pid = ::fork();
    NEED(pid >= 0, "fork");
    if (pid == 0) {
      opened o = open_all(l);
      close_all(o);
      _exit(0);
    }
    int state = 0;
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) {
    }
    NEED(WIFEXITED(state) && WEXITSTATUS(state) == 0, std::to_string(state));
    opened o = open_all(l);
    close_all(o);
  };
  IN_PROCESS(scenario);
}

}  // namespace
}  // namespace stillmap::testing
