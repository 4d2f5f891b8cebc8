// cuMemAllocAsync and cuMemFreeAsync. The allocator keeps the order of streams: a block that is freed on a stream is
// reused there at once, elsewhere behind an event. On a stream that captures, the call is a node of the graph, which
// only the driver can make.
#include <atomic>

#include "preload/service/ipc/exported_blocks.h"
#include "preload/service/memory/captures.h"
#include "preload/service/memory/default_pool.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/serve_by_driver.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

constinit std::atomic<bool> other_pool_set{false};

enum class default_stream : bool { legacy, of_thread };

// The program has given no stream: which one it means depends on the variant that it calls.
stream_ref stream_of(word stream, default_stream d) noexcept {
  if (stream == 1) return stream_ref::legacy();  // CU_STREAM_LEGACY
  if (stream != 0) return reinterpret_cast<stream_handle>(stream);
  return d == default_stream::legacy ? stream_ref::legacy() : stream_ref::per_thread();
}

// Whether the stream exists and captures nothing.
template <function query>
bool plain(word stream) noexcept {
  number status = 0;
  return pass_on<query>(stream, reinterpret_cast<word>(&status)) == code::success && status == 0;
}

driver_code allocate(caching_allocator &heap, word at, word bytes, stream_ref s) noexcept {
  const auto block = heap.allocate(bytes, s);
  if (!block) return code_of(block.error());
  *reinterpret_cast<word *>(at) = reinterpret_cast<word>(*block);
  return code::success;
}

// A pool is the device's: its memory does not end with a context. Memory of a graph (not `legal`) is what the graph
// needs, not what its nodes allocate.
current_place place_of_pool(bool legal) noexcept {
  return legal ? current_place{current_device()} : current_place();
}

template <function query, function f>
driver_code allocate(word at, word bytes, word stream, default_stream d) noexcept {
  const bool legal = at != 0 && bytes != 0 && plain<query>(stream);
  const bool from_default = !other_pool_set.load(std::memory_order_relaxed);
  caching_allocator *const heap = legal && from_default ? heaps::current() : nullptr;
  // Without pools the driver serves no such call.
  if (heap != nullptr && heap->device().capabilities().memory_pools) {
    return allocate(*heap, at, bytes, stream_of(stream, d));
  }
  const passed why = !legal         ? passed::graph_memory
                     : from_default ? passed::not_served
                                    : passed::other_pools;
  return allocate_by_driver(place_of_pool(legal), held_by::address, at, bytes, why,
                            [&] { return pass_on<f>(at, bytes, stream); });
}

template <function query, function f>
driver_code allocate_from_pool(word at, word bytes, word pool, word stream,
                               default_stream d) noexcept {
  const bool legal = at != 0 && bytes != 0 && plain<query>(stream);
  caching_allocator *const heap = legal ? heap_of_pool(pool) : nullptr;
  if (heap != nullptr) return allocate(*heap, at, bytes, stream_of(stream, d));
  return allocate_by_driver(place_of_pool(legal), held_by::address, at, bytes, passed::other_pools,
                            [&] { return pass_on<f>(at, bytes, pool, stream); });
}

template <function query, function f>
driver_code free(word at, word stream, default_stream d) noexcept {
  caching_allocator *const heap = heaps::owner(at);
  // The driver refuses to free in a graph what no graph allocated.
  if (heap == nullptr || !plain<query>(stream)) {
    return free_by_driver(served_memory::take_out(held_by::address, at),
                          [&] { return pass_on<f>(at, stream); });
  }
  const status freed =
      exported_blocks::free(*heap, reinterpret_cast<void *>(at), stream_of(stream, d));
  return freed ? code::success : code_of(freed.error());
}

template <function f>
driver_code destroy_stream(word stream) noexcept {
  if (stream > 2) {  // not one of the default streams
    heaps::each([&](caching_allocator &heap) {
      static_cast<void>(heap.forget_stream(reinterpret_cast<stream_handle>(stream)));
    });
  }
  const driver_code result = captures::destroy<f>(stream);
  note_work();
  return result;
}

}  // namespace

driver_code serve(numbered<function::cuMemAllocAsync>, word at, word bytes, word stream) noexcept {
  return allocate<function::cuStreamIsCapturing, function::cuMemAllocAsync>(at, bytes, stream,
                                                                            default_stream::legacy);
}
driver_code serve(numbered<function::cuMemAllocAsync_ptsz>, word at, word bytes,
                  word stream) noexcept {
  return allocate<function::cuStreamIsCapturing_ptsz, function::cuMemAllocAsync_ptsz>(
      at, bytes, stream, default_stream::of_thread);
}
driver_code serve(numbered<function::cuMemAllocFromPoolAsync>, word at, word bytes, word pool,
                  word stream) noexcept {
  return allocate_from_pool<function::cuStreamIsCapturing, function::cuMemAllocFromPoolAsync>(
      at, bytes, pool, stream, default_stream::legacy);
}
driver_code serve(numbered<function::cuMemAllocFromPoolAsync_ptsz>, word at, word bytes, word pool,
                  word stream) noexcept {
  return allocate_from_pool<function::cuStreamIsCapturing_ptsz,
                            function::cuMemAllocFromPoolAsync_ptsz>(at, bytes, pool, stream,
                                                                    default_stream::of_thread);
}
driver_code serve(numbered<function::cuMemFreeAsync>, word at, word stream) noexcept {
  return free<function::cuStreamIsCapturing, function::cuMemFreeAsync>(at, stream,
                                                                       default_stream::legacy);
}
driver_code serve(numbered<function::cuMemFreeAsync_ptsz>, word at, word stream) noexcept {
  return free<function::cuStreamIsCapturing_ptsz, function::cuMemFreeAsync_ptsz>(
      at, stream, default_stream::of_thread);
}

driver_code serve(numbered<function::cuDeviceSetMemPool>, number device, word pool) noexcept {
  word usual = 0;
  const bool other = pass_on<function::cuDeviceGetDefaultMemPool>(reinterpret_cast<word>(&usual),
                                                                  device) != code::success ||
                     pool != usual;
  const driver_code result = pass_on<function::cuDeviceSetMemPool>(device, pool);
  if (result == code::success) other_pool_set.store(other, std::memory_order_relaxed);
  return result;
}

driver_code serve(numbered<function::cuStreamDestroy>, word stream) noexcept {
  return destroy_stream<function::cuStreamDestroy>(stream);
}
driver_code serve(numbered<function::cuStreamDestroy_v2>, word stream) noexcept {
  return destroy_stream<function::cuStreamDestroy_v2>(stream);
}

}  // namespace stillmap::preload
