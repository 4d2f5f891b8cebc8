// Parameters of the nodes of a graph. The functions that queue work set them in their operation, so
// a captured node has them like an explicit one.
#pragma once

#include <cuda.h>

#include <memory>
#include <variant>
#include <vector>

#include "hostcuda/src/memory/graph_memory.h"

namespace hostcuda {

struct context;
struct graph;

struct kernel_params {
  CUDA_KERNEL_NODE_PARAMS values{};  // kernelParams points into `arguments`
  std::shared_ptr<void> arguments;
  context *ctx = nullptr;
};
struct copy_params {
  CUDA_MEMCPY3D values{};
  CUcontext ctx = nullptr;
};
struct fill_params {
  CUDA_MEMSET_NODE_PARAMS values{};
  CUcontext ctx = nullptr;
};
struct child_params {
  std::shared_ptr<graph> child;
};
struct event_params {
  CUevent event = nullptr;
};
struct alloc_params {
  CUDA_MEM_ALLOC_NODE_PARAMS values{};  // accessDescs points into `access`
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<graph_memory> memory;
};
struct free_params {
  CUdeviceptr at = 0;
};

struct node_params {
  std::variant<std::monostate, kernel_params, copy_params, fill_params, CUDA_HOST_NODE_PARAMS,
               child_params, event_params, alloc_params, free_params>
      of;
};

template <class Params>
std::shared_ptr<const node_params> share_params(Params p) {
  auto out = std::make_shared<node_params>();
  out->of = std::move(p);
  return out;
}

}  // namespace hostcuda
