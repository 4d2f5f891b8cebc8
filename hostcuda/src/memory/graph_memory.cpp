// Memory of allocation nodes, and the attributes of a device's graph memory.
#include "hostcuda/src/memory/graph_memory.h"

#include <algorithm>
#include <mutex>

#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/memory_parts.h"
#include "hostcuda/src/memory/pool.h"

namespace hostcuda {
namespace {

// Guarded by the_memory().mutex.
struct graph_usage {
  memory_pool *pool = nullptr;
  std::size_t used = 0;
  std::size_t used_high = 0;
};

graph_usage &graph_usage_of(CUdevice device) {
  static auto *const all = new graph_usage[kMaxDevices];
  return all[device];
}

using block_place = std::map<CUdeviceptr, block>::iterator;

block_place find_graph_block(CUdeviceptr at) {
  const auto it = the_memory().blocks.find(at);
  return it != the_memory().blocks.end() && it->second.graph != graph_block::no
             ? it
             : the_memory().blocks.end();
}

CUresult graph_mem_attribute(CUdevice device, CUgraphMem_attribute what, void *value, bool set) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  exclusive lock(the_memory().mutex);
  graph_usage &u = graph_usage_of(device);
  arena none;
  arena &a = u.pool != nullptr ? u.pool->a : none;
  auto *const wide = static_cast<cuuint64_t *>(value);
  if (set) {  // the high watermarks can only be reset
    if (*wide != 0) return CUDA_ERROR_INVALID_VALUE;
    if (what == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
      u.used_high = u.used;
    } else if (what == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
      a.reserved_high = a.reserved;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  }
  const cuuint64_t values[] = {u.used, u.used_high, a.reserved, a.reserved_high};
  if (what > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  *wide = values[what];
  return CUDA_SUCCESS;
}

}  // namespace

graph_memory::~graph_memory() {
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  const auto it = find_graph_block(at);
  if (it == the_memory().blocks.end() || it->second.id != id) return;  // a reset removed it
  if (it->second.graph == graph_block::allocated) {
    it->second.graph = graph_block::orphan;
  } else {
    arena_free_locked(it, &dead);
  }
}

CUresult make_graph_memory(CUdevice device, std::size_t bytes, std::shared_ptr<graph_memory> *out) {
  block proto;
  {
    exclusive lock(the_memory().mutex);
    memory_pool *&p = graph_usage_of(device).pool;
    if (p == nullptr) {
      p = add_pool_locked(device);
      p->hidden = true;
      p->release_threshold = ~std::uint64_t{0};  // only cuDeviceGraphMemTrim releases it
    }
    proto.pool = p;
  }
  proto.graph = graph_block::reserved;
  auto memory = std::make_shared<graph_memory>();
  CUdeviceptr at = 0;
  const CUresult r = arena_allocate(&proto.pool->a, bytes, proto, &at);
  if (r != CUDA_SUCCESS) return r;
  memory->at = at;
  memory->bytes = bytes;
  memory->device = device;
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  memory->id = the_memory().blocks.find(at)->second.id;
  *out = std::move(memory);
  return CUDA_SUCCESS;
}

graph_memory_state state_of_graph_memory(CUdeviceptr at) {
  std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
  const auto it = find_graph_block(at);
  if (it == the_memory().blocks.end()) return graph_memory_state::none;
  return it->second.graph == graph_block::reserved ? graph_memory_state::reserved
                                                   : graph_memory_state::allocated;
}

bool set_graph_memory(CUdeviceptr at, bool allocated) {
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  const auto it = find_graph_block(at);
  if (it == the_memory().blocks.end()) return false;
  const graph_block was = it->second.graph;
  if (was == graph_block::orphan) {
    arena_free_locked(it, &dead);
  } else {
    it->second.graph = allocated ? graph_block::allocated : graph_block::reserved;
  }
  return was != graph_block::reserved;
}

void count_graph_memory(CUdevice device, std::size_t bytes, bool allocated) {
  exclusive lock(the_memory().mutex);
  graph_usage &u = graph_usage_of(device);
  if (allocated) {
    u.used += bytes;
    u.used_high = std::max(u.used_high, u.used);
  } else {
    u.used -= std::min(u.used, bytes);
  }
}

operation graph_alloc_op(const std::shared_ptr<graph_memory> &memory) {
  operation op{};
  op.what = "cuGraphAddMemAllocNode";
  op.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  op.body = [device = memory->device, bytes = memory->bytes] {
    count_graph_memory(device, bytes, true);
    return CUDA_SUCCESS;
  };
  return op;
}

operation graph_free_op(CUdeviceptr at) {
  std::size_t bytes = 0;
  int device = 0;
  {
    std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
    const auto it = find_graph_block(at);
    if (it != the_memory().blocks.end()) {
      bytes = it->second.bytes;
      device = it->second.location;
    }
  }
  operation op{};
  op.what = "cuGraphAddMemFreeNode";
  op.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  op.touches = {{at, bytes, true}};
  op.frees = true;
  op.body = [at, bytes, device] {
    forget_accesses_before_this(at, bytes);
    count_graph_memory(device, bytes, false);
    return CUDA_SUCCESS;
  };
  return op;
}

void reset_graph_memory() {
  for (int i = 0; i < kMaxDevices; ++i) graph_usage_of(i) = graph_usage{};
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuDeviceGetGraphMemAttribute, 11040, needs_pools, 0,
               (CUdevice device, CUgraphMem_attribute what, void *value),
               { return graph_mem_attribute(device, what, value, false); })

HOSTCUDA_ENTRY(cuDeviceSetGraphMemAttribute, 11040, needs_pools, 0,
               (CUdevice device, CUgraphMem_attribute what, void *value),
               { return graph_mem_attribute(device, what, value, true); })

HOSTCUDA_ENTRY(cuDeviceGraphMemTrim, 11040, needs_pools, 0, (CUdevice device), {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  dead_memory dead;
  exclusive lock(the_memory().mutex);
  if (memory_pool *const p = graph_usage_of(device).pool) arena_trim_locked(&p->a, 0, &dead);
  return CUDA_SUCCESS;
})
