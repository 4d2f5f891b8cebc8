#include "tests/allocators/torch/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/context.h"

namespace stillmap::testing {
namespace {

template <class Function>
void find(void *library, const char *name, Function *&into) {
  void *const symbol = dlsym(library, name);
  MUST(symbol != nullptr, name);
  into = reinterpret_cast<Function *>(symbol);
}

class fresh_processes final : public ::testing::Environment {
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
[[maybe_unused]] ::testing::Environment *const always =
    ::testing::AddGlobalTestEnvironment(new fresh_processes);

}  // namespace

void wrong(const char *file, int line, const std::string &what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  _exit(1);
}

std::string plugin_path() {
  if (const char *given = std::getenv("STILLMAP_TORCH")) return given;
#ifdef STILLMAP_TORCH_BUILT
  return STILLMAP_TORCH_BUILT;
#else
  return std::filesystem::absolute("allocators/torch/libstillmap_torch.so").string();
#endif
}

plugin load_plugin() {
  if (const char *machine = std::getenv("HOSTCUDA")) {
    setenv("HOSTCUDA", (std::string(machine) + ",memory=256M").c_str(), 1);
  }
  void *const library = dlopen(plugin_path().c_str(), RTLD_NOW | RTLD_LOCAL);  // as ctypes.CDLL
  MUST(library != nullptr, dlerror());
  plugin p;
  find(library, "stillmap_malloc", p.malloc);
  find(library, "stillmap_try_malloc", p.try_malloc);
  find(library, "stillmap_free", p.free);
  find(library, "stillmap_record_stream", p.record_stream);
  find(library, "stillmap_empty_cache", p.empty_cache);
  find(library, "stillmap_set_memory_fraction", p.set_memory_fraction);
  find(library, "stillmap_stats", p.stats);
  find(library, "stillmap_last_error", p.last_error);
  find(library, "stillmap_hooks", p.hooks);
  find(library, "stillmap_begin_allocate_to_pool", p.begin_pool);
  find(library, "stillmap_end_allocate_to_pool", p.end_pool);
  find(library, "stillmap_release_pool", p.release_pool);
  return p;
}

device open(int ordinal) {
  const auto d = device::open(ordinal);
  MUST(d, d.error().message());
  return *d;
}
stream new_stream(const device &d) {
  auto s = stream::create(d);
  MUST(s, s.error().message());
  return std::move(*s);
}
void fill(const device &d, void *at, unsigned char value, std::size_t bytes, stream_handle s) {
  const context_guard guard(d.driver(), d.context());
  const auto done = d.driver().set_bytes_async(device_address(reinterpret_cast<std::uintptr_t>(at)),
                                               value, bytes, s);
  MUST(done, done.error().message());
}
bool all_are(const device &d, void *at, unsigned char value, std::size_t bytes, stream_handle s) {
  const context_guard guard(d.driver(), d.context());
  std::vector<unsigned char> seen(bytes);
  const auto done = d.driver().copy_to_host_async(
      seen.data(), device_address(reinterpret_cast<std::uintptr_t>(at)), bytes, s);
  MUST(done, done.error().message());
  MUST(d.driver().synchronize_stream(s), "the stream");
  return seen == std::vector<unsigned char>(bytes, value);
}

long long plugin::figure(const char *name, int device) const {
  std::vector<char> text(stats(device, nullptr, 0) + 1);
  stats(device, text.data(), text.size());
  const std::string json = text.data(), key = "\"" + std::string(name) + "\": ";
  const std::size_t at = json.find(key);
  return at == std::string::npos ? -1 : std::atoll(json.c_str() + at + key.size());
}

}  // namespace stillmap::testing
