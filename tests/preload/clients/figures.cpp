// The client of preload_figures_test: what cuMemGetInfo, cuDeviceTotalMem and NVML say under a limit, beside what the
// program has. figures SEED LIMIT DEVICE_BYTES
#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/preload/clients/semantics.h"

namespace {

struct nvml_memory {
  unsigned long long total, free, used;
};
struct nvml_memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

// NVML's, where the library is here.
struct nvml {
  int (*init)() = nullptr;
  int (*device_at)(unsigned, void **) = nullptr;
  int (*memory)(void *, nvml_memory *) = nullptr;
  int (*memory_v2)(void *, nvml_memory_v2 *) = nullptr;
  void *device = nullptr;
};

}  // namespace

int main(int, char **words) {
  const auto seed = static_cast<unsigned>(std::atoi(words[1]));
  const std::size_t limit = std::strtoull(words[2], nullptr, 10),
                    device_bytes = std::strtoull(words[3], nullptr, 10);
  const std::size_t most = std::min(limit, device_bytes);
  if (client::use_device(0) != 0) return 1;
  nvml n;
  void *const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
  CLIENT_EXPECT(library != nullptr);
  n.init = reinterpret_cast<decltype(n.init)>(::dlsym(library, "nvmlInit_v2"));
  n.device_at =
      reinterpret_cast<decltype(n.device_at)>(::dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  n.memory = reinterpret_cast<decltype(n.memory)>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
  n.memory_v2 =
      reinterpret_cast<decltype(n.memory_v2)>(::dlsym(library, "nvmlDeviceGetMemoryInfo_v2"));
  CLIENT_CHECK(n.init());
  CLIENT_CHECK(n.device_at(0, &n.device));
  std::mt19937 random(seed);
  std::vector<std::pair<CUdeviceptr, std::size_t>> blocks;
  std::vector<std::pair<CUmemGenericAllocationHandle, std::size_t>>
      own;  // what it could map itself
  int maps = 0;
  CLIENT_CHECK(
      cuDeviceGetAttribute(&maps, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  std::size_t live = 0, refused = 0;
  for (int step = 0; step < 300; ++step) {
    const std::size_t unit = std::max<std::size_t>(most / 16, 1);
    const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 4 * unit : unit / 8 + 4096);
    if (maps != 0 && random() % 6 == 0) {
      CUmemGenericAllocationHandle handle = 0;
      const std::size_t size = std::max<std::size_t>(bytes >> 21, 1) << 21;
      const CUresult r = client::create_memory(&handle, size);
      if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        ++refused;
      } else {
        CLIENT_CHECK(r);
        own.emplace_back(handle, size);
        live += size;
      }
    } else if (!own.empty() && random() % 4 == 0) {
      std::swap(own[random() % own.size()], own.back());
      CLIENT_CHECK(cuMemRelease(own.back().first));
      live -= own.back().second;
      own.pop_back();
    } else if (blocks.empty() || random() % 5 < 3) {
      CUdeviceptr at = 0;
      std::size_t pitch = 0;
      const bool pitched = random() % 8 == 0;
      const CUresult r =
          pitched ? cuMemAllocPitch(&at, &pitch, std::max<std::size_t>(bytes / 16, 1), 16, 4)
                  : cuMemAlloc(&at, bytes);
      if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        ++refused;
      } else {
        CLIENT_CHECK(r);
        const std::size_t size = pitched ? pitch * 16 : bytes;
        blocks.emplace_back(at, size);
        live += size;
        // An inner address.
        CUdeviceptr base = 0;
        std::size_t range = 0;
        CLIENT_CHECK(cuMemGetAddressRange(&base, &range, at + size - 1));
        CLIENT_EXPECT(base == at);
        CLIENT_EXPECT(range == size);
        std::uint64_t start = 0, length = 0;
        CLIENT_CHECK(
            cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + size / 2));
        CLIENT_CHECK(
            cuPointerGetAttribute(&length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + size / 2));
        CLIENT_EXPECT(start == at && length == size);
        CLIENT_CHECK(cuMemsetD8(at + size - 1, 1, 1));
      }
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      CLIENT_CHECK(cuMemFree(blocks.back().first));
      live -= blocks.back().second;
      blocks.pop_back();
    }
    CLIENT_EXPECT(live <= most);
    std::size_t free_bytes = 0, total = 0, whole = 0;
    CLIENT_CHECK(cuMemGetInfo(&free_bytes, &total));
    CLIENT_CHECK(cuDeviceTotalMem(&whole, 0));
    CLIENT_EXPECT(total == most && whole == most);
    CLIENT_EXPECT(free_bytes <= total && free_bytes + live <= total);
    nvml_memory m{};
    CLIENT_CHECK(n.memory(n.device, &m));
    CLIENT_EXPECT(m.total == most && m.free <= m.total && m.used <= m.total &&
                  m.free + m.used == m.total);
    CLIENT_EXPECT(m.used >= live);
    nvml_memory_v2 v{};
    v.version = 2U << 24 | sizeof v;
    CLIENT_CHECK(n.memory_v2(n.device, &v));
    CLIENT_EXPECT(v.total == most && v.free <= v.total && v.used <= v.total &&
                  v.reserved <= v.total);
    CLIENT_EXPECT(v.free + v.used <= v.total && v.used >= live);
  }
  // More than there is, and the program goes on.
  CUdeviceptr at = 0;
  CLIENT_EXPECT(cuMemAlloc(&at, most + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  for (const auto &[block, bytes] : blocks) CLIENT_CHECK(cuMemFree(block));
  for (const auto &[handle, bytes] : own) CLIENT_CHECK(cuMemRelease(handle));
  if (most > (4 << 20)) CLIENT_CHECK(cuMemAlloc(&at, most / 4));
  std::printf("blocks %zu refused %zu\n", blocks.size(), refused);
  return 0;
}
