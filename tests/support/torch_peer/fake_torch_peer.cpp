// A library with the C interface of torch_peer.h and nothing of PyTorch: cuMemAlloc for each request.
// STILLMAP_FAKE_TORCH_PEER=old makes it one of another version of the interface.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "bench/replay/baselines/torch_peer.h"

namespace {

constexpr int driver_out_of_memory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

struct fake_heap {
  std::map<void *, std::size_t> live;
  std::uint64_t now = 0, peak = 0, retries = 0;
  std::string why;
} heap;

int fails(int code, std::string why) {
  heap.why = std::move(why);
  return code;
}

// The driver that the program has loaded, found by its name as PyTorch's runtime finds it.
template <class Function>
Function *driver_function(const char *name) {
  static void *const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function *>(::dlsym(driver, name));
}

int open_fake(int, const char *settings) {
  heap.peak = heap.now;
  heap.retries = 0;
  if (std::strstr(settings, "max_split_size_mb:1,") != nullptr) {
    return fails(STILLMAP_TORCH_PEER_FAILED, "max_split_size_mb is too small");
  }
  // Says what it got where a test can read it.
  heap.retries = std::strstr(settings, "expandable_segments:True") != nullptr ? 7 : 3;
  return STILLMAP_TORCH_PEER_OK;
}

int close_fake() {
  return STILLMAP_TORCH_PEER_OK;
}

int allocate_fake(void **out, size_t bytes, void *) {
  static auto *const get = driver_function<int(unsigned long long *, std::size_t)>("cuMemAlloc_v2");
  unsigned long long at = 0;
  const int code = get(&at, bytes);
  if (code == driver_out_of_memory) {
    return fails(STILLMAP_TORCH_PEER_OUT_OF_MEMORY, "CUDA out of memory");
  }
  if (code != 0) return fails(STILLMAP_TORCH_PEER_FAILED, "cuMemAlloc " + std::to_string(code));
  *out = reinterpret_cast<void *>(at);
  heap.live.emplace(*out, bytes);
  heap.now += bytes;
  if (heap.now > heap.peak) heap.peak = heap.now;
  return STILLMAP_TORCH_PEER_OK;
}

int free_fake(void *at) {
  static auto *const release = driver_function<int(unsigned long long)>("cuMemFree_v2");
  const auto found = heap.live.find(at);
  if (found == heap.live.end()) return fails(STILLMAP_TORCH_PEER_FAILED, "no such block");
  heap.now -= found->second;
  heap.live.erase(found);
  const int code = release(reinterpret_cast<unsigned long long>(at));
  return code == 0 ? STILLMAP_TORCH_PEER_OK
                   : fails(STILLMAP_TORCH_PEER_FAILED, "cuMemFree " + std::to_string(code));
}

int record_stream_fake(void *at, void *) {
  return heap.live.count(at) != 0 ? STILLMAP_TORCH_PEER_OK
                                  : fails(STILLMAP_TORCH_PEER_FAILED, "no such block");
}

int stats_fake(stillmap_torch_peer_stats *out) {
  *out = {heap.now, heap.peak, heap.retries};
  return STILLMAP_TORCH_PEER_OK;
}

const char *last_error_fake() {
  return heap.why.c_str();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const stillmap_torch_peer *
stillmap_torch_peer_table() {
  static stillmap_torch_peer table;
  const char *const mode = std::getenv("STILLMAP_FAKE_TORCH_PEER");
  const bool old = mode != nullptr && std::strcmp(mode, "old") == 0;
  table = {old ? 0u : STILLMAP_TORCH_PEER_VERSION,
           "0.0",
           open_fake,
           close_fake,
           allocate_fake,
           free_fake,
           record_stream_fake,
           stats_fake,
           last_error_fake};
  return &table;
}
