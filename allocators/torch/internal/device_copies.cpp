#include "stillmap/allocators/torch/internal/device_copies.h"

#include <atomic>
#include <cstddef>

#include "stillmap/allocators/torch/internal/allocator_object.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

struct CUstream_st;

namespace stillmap::torch_plugin {
namespace {

constexpr const char *copy_name =
    "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11memcpyAsyncEPviPKvimP11CUstrea"
    "m_stb";

// cudaError_t is an int.
using peer_copy = int (*)(void *to, int to_device, const void *from, int from_device,
                          std::size_t bytes, CUstream_st *s);
using allocator_copy = int (*)(void *self, void *to, int to_device, const void *from,
                               int from_device, std::size_t bytes, CUstream_st *s, bool peers);

std::atomic<bool> accessible{true};
std::atomic<peer_copy> staged{nullptr};
std::atomic<allocator_copy> direct{nullptr};

int copy_between(void *self, void *to, int to_device, const void *from, int from_device,
                 std::size_t bytes, CUstream_st *s, bool peers) {
  if (to_device == from_device || (peers && accessible.load(std::memory_order_relaxed))) {
    return direct.load()(self, to, to_device, from, from_device, bytes, s, peers);
  }
  return staged.load()(to, to_device, from, from_device, bytes, s);
}

}  // namespace

status route_copies(bool all_peers) {
  const operation_scope scope("stillmap.torch.use");
  static mutex routing;
  const lock_guard lock(routing);
  if (!all_peers) accessible = false;
  if (direct.load() != nullptr) return {};
  STILLMAP_ASSIGN_OR_RETURN(const allocator_object used, allocator_object::current());
  staged = used.find<peer_copy>("cudaMemcpyPeerAsync");
  if (staged.load() == nullptr) {
    return make_error(errc::not_supported, "the CUDA runtime has no cudaMemcpyPeerAsync");
  }
  direct = used.function<allocator_copy>(copy_name);
  return used.replace(copy_name, reinterpret_cast<void *>(&copy_between));
}

}  // namespace stillmap::torch_plugin
