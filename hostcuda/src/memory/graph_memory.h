// Memory of the allocation nodes of graphs. The address is chosen when the node is made. A launch
// allocates it, a free node or cuMemFree(Async) frees it; in between launches it stays reserved.
// hostcuda/docs/streams.md#graphs
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hostcuda {

struct operation;

// Held by the nodes and the executable graphs. The memory is released with the last holder or, if a
// launch has allocated it and it is not freed then, when it is freed.
struct graph_memory {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  CUdevice device = 0;
  std::uint64_t id = 0;  // of the block

  graph_memory() = default;
  graph_memory(const graph_memory &) = delete;
  graph_memory &operator=(const graph_memory &) = delete;
  ~graph_memory();
};

// Errors: OUT_OF_MEMORY.
CUresult make_graph_memory(CUdevice device, std::size_t bytes, std::shared_ptr<graph_memory> *out);

// Whether `at` is memory of an allocation node, and whether it is allocated.
enum class graph_memory_state { none, reserved, allocated };
graph_memory_state state_of_graph_memory(CUdeviceptr at);

// Marks the memory at the call of a launch or of a free. `allocated` false: returns whether it was
// allocated; of memory without a graph, the block is removed.
bool set_graph_memory(CUdeviceptr at, bool allocated);

// Changes the bytes that the graphs of a device use, when an allocation or a free runs.
void count_graph_memory(CUdevice device, std::size_t bytes, bool allocated);

// The operations of an allocation and a free node, without the node's parameters.
operation graph_alloc_op(const std::shared_ptr<graph_memory> &memory);
operation graph_free_op(CUdeviceptr at);

}  // namespace hostcuda
