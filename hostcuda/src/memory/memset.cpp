// The memset functions of the driver API.
#include <mutex>
#include <utility>

#include "hostcuda/src/context.h"
#include "hostcuda/src/counters.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/node_params.h"
#include "hostcuda/src/memory/bytes.h"
#include "hostcuda/src/memory/copy.h"
#include "hostcuda/src/memory/memory_state.h"

namespace hostcuda {
namespace {

struct fill {
  const char *what;
  CUdeviceptr at;
  std::size_t pitch;  // distance between rows in bytes
  unsigned value;
  std::size_t width;  // bytes of an element: 1, 2 or 4
  std::size_t count;  // elements of a row
  std::size_t rows;
};

std::size_t span_of(const fill &f) {
  return f.pitch * (f.rows - 1) + f.count * f.width;
}

CUresult run(const fill &f, CUdevice device, bool real) {
  pinned_access target{device, f.at, span_of(f), true, false, nullptr, {}};
  pin_guard pins;
  if (!pins.take(&target, 1)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (real && !host_can_touch(f.count * f.width * f.rows)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (real && f.rows == 1)
    for (const host_bytes &p : target.pieces) fill_bytes(p.at, f.value, f.width, p.bytes / f.width);
  if (real && (f.rows != 1 || target.pieces.empty()))
    for (std::size_t row = 0; row < f.rows; ++row)
      fill_bytes(target.host + row * f.pitch, f.value, f.width, f.count);
  counters().bytes_set += f.count * f.width * f.rows;
  return CUDA_SUCCESS;
}

CUresult make_fill(const fill &f, CUdevice device, operation *op) {
  if (f.at == 0 || f.at % f.width != 0) return CUDA_ERROR_INVALID_VALUE;
  if (f.rows > 1 && (f.pitch < f.count * f.width || f.pitch % f.width != 0))
    return CUDA_ERROR_INVALID_VALUE;
  bool real = true;
  {
    memory_registry &b = the_memory();
    std::shared_lock<std::shared_mutex> lock(b.mutex);
    if (resolve_locked(device, f.at, span_of(f), true, peer_rule::copies) == nullptr)
      return CUDA_ERROR_INVALID_VALUE;
    // On an unbacked machine, pinned and managed host memory still has bytes.
    const auto k = containing(b.blocks, f.at);
    const bool host =
        k != b.blocks.end() ? k->second.owner == nullptr : containing(b.host, f.at) != b.host.end();
    real = host || !unbacked();
  }
  op->what = f.what;
  op->touches = {{f.at, span_of(f), true}};
  op->body = [f, device, real] { return run(f, device, real); };
  op->type = CU_GRAPH_NODE_TYPE_MEMSET;
  return CUDA_SUCCESS;
}

CUresult set(const fill &f, CUstream stream, bool wait) {
  if (wait && capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (f.count == 0 || f.rows == 0) return CUDA_SUCCESS;
  operation op{};
  const CUresult r = make_fill(f, current_context()->device, &op);
  if (r != CUDA_SUCCESS) return r;
  if (wait) return enqueue_and_wait(std::move(op), stream);
  op.describe = [&f] {
    const CUDA_MEMSET_NODE_PARAMS values{f.at,    f.pitch, f.value, static_cast<unsigned>(f.width),
                                         f.count, f.rows};
    return share_params(fill_params{values, handle_of(current_context())});
  };
  return enqueue(stream, std::move(op));
}

}  // namespace

CUresult make_memset(const CUDA_MEMSET_NODE_PARAMS &p, CUdevice device, operation *op) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (p.width == 0 || p.height == 0) return CUDA_ERROR_INVALID_VALUE;
  return make_fill(
      {"cuGraphAddMemsetNode", p.dst, p.pitch, p.value, p.elementSize, p.width, p.height}, device,
      op);
}

}  // namespace hostcuda

using namespace hostcuda;

#define HOSTCUDA_MEMSETS(suffix, type, width)                                                    \
  HOSTCUDA_SYNC_ENTRY(                                                                           \
      cuMemset##suffix##_v2, 3020, needs_context, count *width,                                  \
      (CUdeviceptr at, type value, size_t count), (at, value, count), {                          \
        return set({"cuMemset" #suffix, at, 0, value, width, count, 1}, stream_, true);          \
      })                                                                                         \
  HOSTCUDA_STREAM_ENTRY(                                                                         \
      cuMemset##suffix##Async, 3020, needs_context, count *width, stream,                        \
      (CUdeviceptr at, type value, size_t count, CUstream stream), (at, value, count, stream), { \
        return set({"cuMemset" #suffix "Async", at, 0, value, width, count, 1}, stream, false);  \
      })
#define HOSTCUDA_MEMSETS_2D(suffix, type, width)                                               \
  HOSTCUDA_SYNC_ENTRY(                                                                         \
      cuMemset##suffix##_v2, 3020, needs_context, count *width *rows,                          \
      (CUdeviceptr at, size_t pitch, type value, size_t count, size_t rows),                   \
      (at, pitch, value, count, rows), {                                                       \
        return set({"cuMemset" #suffix, at, pitch, value, width, count, rows}, stream_, true); \
      })                                                                                       \
  HOSTCUDA_STREAM_ENTRY(                                                                       \
      cuMemset##suffix##Async, 3020, needs_context, count *width *rows, stream,                \
      (CUdeviceptr at, size_t pitch, type value, size_t count, size_t rows, CUstream stream),  \
      (at, pitch, value, count, rows, stream), {                                               \
        return set({"cuMemset" #suffix "Async", at, pitch, value, width, count, rows}, stream, \
                   false);                                                                     \
      })

HOSTCUDA_MEMSETS(D8, unsigned char, 1)
HOSTCUDA_MEMSETS(D16, unsigned short, 2)
HOSTCUDA_MEMSETS(D32, unsigned, 4)
HOSTCUDA_MEMSETS_2D(D2D8, unsigned char, 1)
HOSTCUDA_MEMSETS_2D(D2D16, unsigned short, 2)
HOSTCUDA_MEMSETS_2D(D2D32, unsigned, 4)
