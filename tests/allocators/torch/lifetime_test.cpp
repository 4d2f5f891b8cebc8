// libstillmap_torch.so in a process that forks, that ends, and whose driver is unloaded; and the
// symbols that it exports.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <sstream>
#include <thread>
#include <vector>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"
#include "tests/allocators/torch/plugin.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

class torch_lifetime : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::testing::internal::InDeathTestChild()) return;
    if (!hostcuda_control::available()) GTEST_SKIP() << "needs hostcuda's switches";
  }
};

// What `in_child` leaves behind: 0 is well. A child that hangs is ended.
template <class Run>
int forked(Run in_child) {
  const pid_t pid = ::fork();
  MUST(pid >= 0, "fork");
  if (pid == 0) {
    alarm(30);
    in_child();
    _exit(0);
  }
  int state = 0;
  while (waitpid(pid, &state, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state);
}

TEST_F(torch_lifetime, exports_its_c_functions_and_nothing_else) {
  if (std::system("nm --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no nm";
  FILE *const pipe = popen(("nm -D --defined-only '" + plugin_path() + "'").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  ASSERT_EQ(pclose(pipe), 0);
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string address, kind, name; lines >> address >> kind >> name;) names.push_back(name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "stillmap_begin_allocate_to_pool", "stillmap_empty_cache",
                       "stillmap_end_allocate_to_pool", "stillmap_free", "stillmap_hooks",
                       "stillmap_last_error", "stillmap_malloc", "stillmap_record_stream",
                       "stillmap_release_pool", "stillmap_set_memory_fraction", "stillmap_stats",
                       "stillmap_try_malloc"}));
}

TEST_F(torch_lifetime, each_hook_names_an_exported_function) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    void *const library = dlopen(plugin_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    std::istringstream lines(p.hooks());
    std::vector<std::string> setters;
    for (std::string setter, name; lines >> setter >> name;) {
      MUST(dlsym(library, name.c_str()) != nullptr, name);
      setters.push_back(setter);
    }
    // The methods of PyTorch 2.8 to 2.15.
    MUST(
        setters == (std::vector<std::string>{"set_record_stream_fn", "set_reset_fn",
                                             "set_memory_fraction_fn", "set_begin_allocate_to_pool",
                                             "set_end_allocate_to_pool_fn", "set_release_pool"}),
        p.hooks());
  };
  IN_OWN_PROCESS(scenario, "");
}

TEST_F(torch_lifetime, a_missing_driver_is_refused_in_words) {
  const auto scenario = [] {
    setenv("STILLMAP_DRIVER", "/nowhere/libcuda.so.1", 1);
    const plugin p = load_plugin();
    MUST(p.try_malloc(512, 0, nullptr) == nullptr, "without a driver");
    MUST(p.why().find("not supported") != std::string::npos, p.why());
  };
  IN_OWN_PROCESS(scenario, "");
}

// A DataLoader's worker: it was forked while other threads allocated, and drops what it inherited.
TEST_F(torch_lifetime, a_forked_child_is_refused_and_never_waits) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    void *const block = p.malloc(1 << 20, 0, nullptr);
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (ssize_t bytes = 512; !done; bytes = bytes * 3 % (7 << 20) + 512) {
          p.free(p.malloc(bytes, 0, nullptr), bytes, 0, nullptr);
          if (bytes % 5 == 0) p.empty_cache();
        }
      });
    }
    for (int i = 0; i < 20; ++i) {
      const int left = forked([&] {
        MUST(p.try_malloc(512, 0, nullptr) == nullptr, "on a device in use");
        MUST(p.why().find("forked") != std::string::npos, p.why());
        MUST(p.try_malloc(512, 1, nullptr) == nullptr, "on another");
        MUST(p.why().find("forked") != std::string::npos, p.why());
        p.free(block, 1 << 20, 0, nullptr);
        p.record_stream(block, nullptr);
        p.empty_cache();
        p.set_memory_fraction(0.5, 0);
        MUST(p.stats(0, nullptr, 0) == 0, "figures");
      });
      MUST(left == 0, std::to_string(left));
    }
    done = true;
    for (std::thread &t : threads) t.join();
    p.free(block, 1 << 20, 0, nullptr);
    MUST(p.figure("live_bytes") == 0, "the parent's books");
  };
  IN_OWN_PROCESS(scenario, "^$");
}

// What nobody used before the fork is the child's like any other.
TEST_F(torch_lifetime, a_child_may_be_the_first_to_use_it) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const int left = forked([&] { MUST(p.malloc(512, 0, nullptr) != nullptr, p.why()); });
    MUST(left == 0, std::to_string(left));
    MUST(p.malloc(512, 0, nullptr) != nullptr, p.why());
  };
  IN_OWN_PROCESS(scenario, "^$");
}

struct left_over {
  plugin p;
  std::vector<void *> blocks;
};
left_over &at_the_end() {
  static auto *const kept = new left_over;
  return *kept;
}

// Python drops its last tensors when the destructors of statics have run: this handler was
// registered before the library was there, so it runs after all of the library's own.
TEST_F(torch_lifetime, blocks_may_be_alive_at_exit_and_freed_after_it) {
  const auto scenario = [] {
    std::atexit([] {
      left_over &l = at_the_end();
      for (std::size_t i = 0; i < l.blocks.size(); i += 2) {
        l.p.free(l.blocks[i], 3 << 20, 0, nullptr);
      }
      l.p.free(l.blocks[0], 3 << 20, 0, nullptr);  // twice: it says so, even now
      l.p.empty_cache();
      if (l.p.try_malloc(100 << 20, 0, nullptr) == nullptr) {
        std::fprintf(stderr, "late: %s\n", l.p.last_error());
      }
      try {
        l.p.malloc(ssize_t{1} << 45, 0, nullptr);
      } catch (const std::exception &e) {
        std::fprintf(stderr, "thrown: %s\n", e.what());
      }
    });
    left_over &l = at_the_end();
    l.p = load_plugin();
    const device d = *device::open();
    static auto *const s = new stream(std::move(*stream::create(d)));  // never destroyed either
    for (int i = 0; i < 8; ++i) l.blocks.push_back(l.p.malloc(3 << 20, 0, nullptr));
    l.p.record_stream(l.blocks[2], s->get());
    std::thread([&] { l.p.malloc(1 << 20, 0, s->get()); }).join();
  };
  IN_OWN_PROCESS(scenario, "no block begins at this address(.|\n)*thrown: CUDA out of memory");
}

TEST_F(torch_lifetime, a_driver_that_shuts_down_takes_its_memory_along) {
  const auto scenario = [] {
    const plugin p = load_plugin();
    const device d = *device::open();
    const stream s = std::move(*stream::create(d));
    void *const plain = p.malloc(1 << 20, 0, nullptr);
    void *const shared = p.malloc(1 << 20, 0, nullptr);
    p.record_stream(shared, s.get());
    hostcuda_control::fail_from(nullptr, 1, CUDA_ERROR_DEINITIALIZED);
    p.free(plain, 1 << 20, 0, nullptr);
    p.free(shared, 1 << 20, 0, nullptr);
    MUST(p.why().empty(), p.why());
    MUST(p.try_malloc(100 << 20, 0, nullptr) == nullptr, "of a driver that is gone");
    MUST(p.why().find("shutting down") != std::string::npos, p.why());
    std::_Exit(0);
  };
  IN_OWN_PROCESS(scenario, "^$");
}

}  // namespace
}  // namespace stillmap::testing
