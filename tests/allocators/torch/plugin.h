// Loads libstillmap_torch.so as PyTorch does: by path, symbol by symbol.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "stillmap/vmm/base/driver_types.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::testing {

struct plugin {
  void *(*malloc)(ssize_t, int, stream_handle) = nullptr;
  void *(*try_malloc)(ssize_t, int, stream_handle) = nullptr;
  void (*free)(void *, ssize_t, int, stream_handle) = nullptr;
  void (*record_stream)(void *, stream_handle) = nullptr;
  void (*empty_cache)() = nullptr;
  void (*set_memory_fraction)(double, int) = nullptr;
  std::size_t (*stats)(int, char *, std::size_t) = nullptr;
  const char *(*last_error)() = nullptr;
  const char *(*hooks)() = nullptr;
  using pool_id = std::pair<unsigned long long, unsigned long long>;
  void (*begin_pool)(int, pool_id, std::function<bool(stream_handle)>) = nullptr;
  void (*end_pool)(int, pool_id) = nullptr;
  void (*release_pool)(int, pool_id) = nullptr;

  std::string why() const { return last_error(); }
  // A figure of stats(); -1: there is none.
  long long figure(const char *name, int device = 0) const;
};

// STILLMAP_TORCH, what CMake built, or what Bazel put beside the test.
std::string plugin_path();
// Ends the process where it cannot be loaded. Plays a machine with little memory, so that filling
// it costs the host little.
plugin load_plugin();

// The library keeps its devices for as long as the process lives, so each case is a process of its
// own: gtest starts this program again for it. What goes wrong there is said on stderr.
[[noreturn]] void wrong(const char *file, int line, const std::string &what);

device open(int ordinal = 0);
stream new_stream(const device &d);
// Work of the test itself: each makes the context current and puts it back.
void fill(const device &d, void *at, unsigned char value, std::size_t bytes, stream_handle s);
bool all_are(const device &d, void *at, unsigned char value, std::size_t bytes, stream_handle s);

}  // namespace stillmap::testing

#define MUST(condition, what) \
  if (!(condition))           \
  ::stillmap::testing::wrong(__FILE__, __LINE__, std::string(#condition ": ") + (what))

// Runs `scenario`, which ends by itself or by std::exit, in a process of its own.
#define IN_OWN_PROCESS(scenario, on_stderr) \
  EXPECT_EXIT(                              \
      {                                     \
        scenario();                         \
        std::exit(0);                       \
      },                                    \
      ::testing::ExitedWithCode(0), on_stderr)
