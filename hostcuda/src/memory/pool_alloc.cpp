// Stream-ordered memory: cuMemAllocAsync, cuMemFreeAsync.
//
// cuMemAllocAsync selects the address at the call. cuMemFreeAsync parks the block: work that is
// ordered after the free may reuse the bytes at once, other work when the free has run. A pool
// therefore never reuses bytes that queued work may still access.
#include <mutex>
#include <utility>
#include <vector>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/node_params.h"
#include "hostcuda/src/memory/pool.h"

namespace hostcuda {
namespace {

// cuMemAllocAsync while the stream captures: an allocation node.
CUresult capture_allocation(CUdeviceptr *out, std::size_t bytes, const memory_pool *pool,
                            CUstream stream) {
  alloc_params p;
  const CUdevice device = pool->a.location;
  const CUresult r = make_graph_memory(device, bytes, &p.memory);
  if (r != CUDA_SUCCESS) return r;
  p.values.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.values.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  p.values.bytesize = bytes;
  p.values.dptr = *out = p.memory->at;
  operation op = graph_alloc_op(p.memory);
  op.params = share_params(std::move(p));
  return enqueue(stream, std::move(op));
}

// The pool that is current on a device.
memory_pool *current_pool(CUdevice device) {
  exclusive lock(the_memory().mutex);
  memory_pool *const pool = pools().current[device];
  return pool != nullptr ? pool : standard_pool_locked(device);
}

// `pool` is nullptr for the current one of the stream's device.
CUresult allocate(CUdeviceptr *out, std::size_t bytes, memory_pool *pool, CUstream stream) {
  block proto;
  stream_order order;
  CUresult r = order_of(stream, &order);
  if (r != CUDA_SUCCESS) return r;
  if (pool == nullptr) pool = current_pool(order.device);
  proto.pool = pool;
  // Succeeds on GPUs, and cuMemFreeAsync accepts the address. hostcuda/docs/open_behaviour.md
  if (bytes == 0) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  if (order.capturing) return capture_allocation(out, bytes, pool, stream);
  r = arena_allocate(&pool->a, bytes, proto, out, &order, pool->reuse[0] != 0);
  if (r == CUDA_ERROR_OUT_OF_MEMORY) {
    // Queued frees may release enough memory.
    wait_for_device(pool->a.location);
    r = arena_allocate(&pool->a, bytes, proto, out, &order, pool->reuse[0] != 0);
  }
  if (r != CUDA_SUCCESS) return r;
  operation op{};
  op.what = "cuMemAllocAsync";
  op.body = [] { return CUDA_SUCCESS; };
  r = enqueue(stream, std::move(op));
  if (r == CUDA_SUCCESS) return r;
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  arena_free_locked(the_memory().blocks.find(*out), &dead);
  return r;
}

// Body of the queued free. `id` distinguishes a block from a later one at the same address.
CUresult run_queued_free(CUdeviceptr at, std::size_t bytes, std::uint64_t id) {
  memory_registry &b = the_memory();
  {
    // A reset or the end of a context has removed the block.
    std::shared_lock<std::shared_mutex> look(b.mutex);
    const auto it = b.blocks.find(at);
    if ((it == b.blocks.end() || it->second.id != id) && !arena_is_parked_locked(id))
      return CUDA_SUCCESS;
  }
  forget_accesses_before_this(at, bytes);
  dead_memory dead;
  exclusive lock(b.mutex);
  if (memory_pool *pool = nullptr; arena_unpark_locked(id, &dead, &pool)) {
    delete_if_done_locked(pool, &dead);
    return CUDA_SUCCESS;
  }
  auto it = b.blocks.end();
  do {
    it = b.blocks.find(at);
    if (it == b.blocks.end() || it->second.id != id) return CUDA_SUCCESS;
  } while (wait_for_pins(lock, at, it->second.bytes));
  memory_pool *pool = it->second.pool;
  arena_free_locked(it, &dead);
  if (pool != nullptr) delete_if_done_locked(pool, &dead);
  return CUDA_SUCCESS;
}

// cuMemFreeAsync of the memory of a graph, or a free node while the stream captures.
CUresult free_graph_memory(CUdeviceptr at, CUstream stream, bool capturing) {
  if (!capturing && state_of_graph_memory(at) != graph_memory_state::allocated)
    return CUDA_ERROR_INVALID_VALUE;  // no launch has allocated it
  operation op = graph_free_op(at);
  op.params = share_params(free_params{at});
  const CUresult r = enqueue(stream, std::move(op));
  if (r == CUDA_SUCCESS && !capturing) set_graph_memory(at, false);
  return r;
}

CUresult free_async(CUdeviceptr at, CUstream stream) {
  stream_order order;
  if (const CUresult r = order_of(stream, &order); r != CUDA_SUCCESS) return r;
  if (at == 0) return CUDA_SUCCESS;
  const bool of_graph = state_of_graph_memory(at) != graph_memory_state::none;
  if (of_graph) return free_graph_memory(at, stream, order.capturing);
  if (order.capturing) return CUDA_ERROR_INVALID_VALUE;  // as documented: only graph memory
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  {
    exclusive lock(the_memory().mutex);
    const auto it = the_memory().blocks.find(at);
    if (it == the_memory().blocks.end() || it->second.freeing || it->second.imported ||
        it->second.owned || it->second.owner == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    it->second.freeing = true;
    id = it->second.id;
    bytes = it->second.bytes;
  }
  operation op{};
  op.what = "cuMemFreeAsync";
  op.touches = {{at, bytes, true}};
  op.frees = true;
  op.body = [at, bytes, id] { return run_queued_free(at, bytes, id); };
  place_in_time place;
  op.place = &place;
  const CUresult r = enqueue(stream, std::move(op));
  exclusive lock(the_memory().mutex);
  const auto it = the_memory().blocks.find(at);
  if (it == the_memory().blocks.end() || it->second.id != id) return r;  // the free has already run
  if (r != CUDA_SUCCESS) {
    it->second.freeing = false;
  } else if (it->second.pool != nullptr && place.tick != 0) {
    arena_park_locked(it, place);
  }
  return r;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;

// Only a default stream needs a current context (cuda.h).

HOSTCUDA_STREAM_ENTRY(cuMemAllocAsync, 11020, needs_pools, bytes, stream,
                      (CUdeviceptr * out, size_t bytes, CUstream stream), (out, bytes, stream), {
                        return out == nullptr ? CUDA_ERROR_INVALID_VALUE
                                              : allocate(out, bytes, nullptr, stream);
                      })

HOSTCUDA_STREAM_ENTRY(cuMemAllocFromPoolAsync, 11020, needs_pools, bytes, stream,
                      (CUdeviceptr * out, size_t bytes, CUmemoryPool handle, CUstream stream),
                      (out, bytes, handle, stream), {
                        memory_pool *pool = nullptr;
                        {
                          exclusive lock(the_memory().mutex);
                          pool = find_pool_locked(handle);
                        }
                        if (out == nullptr || pool == nullptr || pool->imported)
                          return CUDA_ERROR_INVALID_VALUE;
                        return allocate(out, bytes, pool, stream);
                      })

HOSTCUDA_STREAM_ENTRY(cuMemFreeAsync, 11020, needs_pools, 0, stream,
                      (CUdeviceptr at, CUstream stream), (at, stream),
                      { return free_async(at, stream); })
