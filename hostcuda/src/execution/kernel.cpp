// Kernel launches, hostcuda_access and hostcuda_declare.
#include "hostcuda/src/execution/kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/cuda_names.h"
#include "hostcuda/src/device.h"
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution/engine.h"
#include "hostcuda/src/execution/module.h"
#include "hostcuda/src/execution/node_params.h"
#include "hostcuda/src/execution/occupancy.h"
#include "hostcuda/src/execution/oracle.h"

namespace hostcuda {
namespace {

constexpr std::size_t max_declared = 64;

// Copy of the parameters of one launch, which outlives the caller's.
struct packed_params {
  std::vector<std::max_align_t> storage;
  std::vector<void *> at;
};

std::size_t rounded(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

packed_params reserve_params(const host_kernel &kernel) {
  packed_params p;
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
  for (const std::size_t bytes : kernel.param_bytes) {
    offsets.push_back(total);
    total += rounded(bytes, alignof(std::max_align_t));
  }
  p.storage.resize(rounded(total, sizeof(std::max_align_t)) / sizeof(std::max_align_t));
  auto *const base = reinterpret_cast<std::byte *>(p.storage.data());
  for (const std::size_t offset : offsets) p.at.push_back(base + offset);
  return p;
}

// Reads a parameter buffer with the device layout: each parameter at its natural alignment.
CUresult unpack_buffer(const host_kernel &kernel, void **extra, packed_params *out) {
  const std::byte *buffer = nullptr;
  std::size_t size = 0;
  bool have_size = false;
  for (std::size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const std::byte *>(extra[i + 1]);
    } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      if (extra[i + 1] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      size = *static_cast<const std::size_t *>(extra[i + 1]);
      have_size = true;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (!have_size || (buffer == nullptr && size != 0)) return CUDA_ERROR_INVALID_VALUE;
  const auto params = lay_out(kernel.param_bytes);
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].offset + params[i].bytes > size) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(out->at[i], buffer + params[i].offset, params[i].bytes);
  }
  return CUDA_SUCCESS;
}

bool is_legal(const launch_shape &s) {
  constexpr unsigned max_grid[3] = {0x7FFFFFFF, 65535, 65535};
  constexpr unsigned max_block[3] = {1024, 1024, 64};
  std::uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (s.grid[i] == 0 || s.grid[i] > max_grid[i]) return false;
    if (s.block[i] == 0 || s.block[i] > max_block[i]) return false;
    threads *= s.block[i];
  }
  return threads <= 1024;
}

// Whether all blocks of a cooperative launch can be resident.
bool fits_at_once(const function &f, const launch_shape &s, std::size_t shared) {
  const int threads = static_cast<int>(s.block[0] * s.block[1] * s.block[2]);
  const auto resident = static_cast<std::uint64_t>(
      blocks_per_multiprocessor(f, threads, shared) *
      device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, f.ctx->device));
  // Divided, because the product of three may not fit.
  return std::uint64_t{s.grid[0]} * s.grid[1] <= resident / s.grid[2];
}

CUresult run_kernel(const host_kernel &kernel, const launch_shape &shape, packed_params &params) {
  if (unbacked()) return CUDA_SUCCESS;  // device memory has no bytes
  hostcuda_launch launch{};
  std::copy_n(shape.grid, 3, launch.grid);
  std::copy_n(shape.block, 3, launch.block);
  launch.params = params.at.data();
  running_work *const work = this_threads_work();
  work->in_kernel = true;
  work->shared_bytes = shape.shared;
  work->failure = CUDA_SUCCESS;
  kernel.fn(&launch);
  work->in_kernel = false;
  return work->n->faulted ? CUDA_ERROR_ILLEGAL_ADDRESS : work->failure;
}

// Copies the parameters of a launch.
CUresult pack(const host_kernel &kernel, void **params, void **extra, packed_params *out) {
  *out = reserve_params(kernel);
  if (extra != nullptr) return unpack_buffer(kernel, extra, out);
  const std::size_t count = kernel.param_bytes.size();
  if (count != 0 && params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(out->at[i], params[i], kernel.param_bytes[i]);
  }
  return CUDA_SUCCESS;
}

// A kernel without a host function (kernels=skip), with the parameters that its PTX declares.
host_kernel skipped_kernel(const function &f) {
  host_kernel k;
  for (const kernel_param &p : f.params) k.param_bytes.push_back(p.bytes);
  return k;
}

// The context of a stream; nullptr for an unknown stream, with the error to return.
context *context_of_stream(CUstream handle, CUresult *error) {
  stream_call call(handle);
  if (!call.s) *error = call.error();
  return call.s ? call.s->ctx : nullptr;
}

CUresult launch(CUfunction handle, const launch_shape &shape, CUstream stream, void **params,
                void **extra, std::optional<std::size_t> cooperative_shared = std::nullopt) {
  if (this_threads_work() != nullptr) return CUDA_ERROR_NOT_PERMITTED;
  CUresult error = CUDA_SUCCESS;
  context *const ctx = context_of_stream(stream, &error);
  if (ctx == nullptr) return error;
  const auto f = find_function(handle, ctx);
  if (!f || f->ctx != ctx) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_legal(shape)) return CUDA_ERROR_INVALID_VALUE;
  if (cooperative_shared && !fits_at_once(*f, shape, *cooperative_shared))
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  operation op{"cuLaunchKernel", {}, {}};
  if (const CUresult r = make_launch(*f, shape, params, extra, &op); r != CUDA_SUCCESS) return r;
  {
    stream_call call(stream);
    if (!call.s) return call.error();
    op.touches = std::move(call.s->declared);
    call.s->declared.clear();
  }
  return enqueue(stream, std::move(op));
}

CUresult launch_config(const CUlaunchConfig *c, CUfunction f, void **params, void **extra,
                       bool per_thread) {
  if (c == nullptr || (c->numAttrs != 0 && c->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  CUstream stream = c->hStream;
  if (stream == nullptr && per_thread) stream = CU_STREAM_PER_THREAD;
  return launch(f,
                {{c->gridDimX, c->gridDimY, c->gridDimZ},
                 {c->blockDimX, c->blockDimY, c->blockDimZ},
                 c->sharedMemBytes},
                stream, params, extra);
}

}  // namespace

CUresult make_launch(const function &f, const launch_shape &shape, void **params, void **extra,
                     operation *op) {
  if (!is_legal(shape) || !shared_memory_fits(f, shape.shared)) return CUDA_ERROR_INVALID_VALUE;
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto kernel = host_kernel_of(f);
  const bool skipped = !kernel;
  if (skipped) {
    if (!current_settings().skip_kernels) return CUDA_ERROR_NOT_FOUND;
    kernel = std::make_shared<host_kernel>(skipped_kernel(f));
  }
  auto packed = std::make_shared<packed_params>();
  if (skipped && extra != nullptr) {
    *packed = reserve_params(*kernel);  // nobody reads the buffer
  } else if (const CUresult r = pack(*kernel, params, extra, packed.get()); r != CUDA_SUCCESS) {
    return r;
  }
  kernel_params p;
  p.values.func = f.handle;
  p.values.gridDimX = shape.grid[0];
  p.values.gridDimY = shape.grid[1];
  p.values.gridDimZ = shape.grid[2];
  p.values.blockDimX = shape.block[0];
  p.values.blockDimY = shape.block[1];
  p.values.blockDimZ = shape.block[2];
  p.values.sharedMemBytes = shape.shared;
  if (!packed->at.empty()) p.values.kernelParams = packed->at.data();
  p.arguments = packed;
  p.ctx = f.ctx;
  op->what = "cuLaunchKernel";
  op->type = CU_GRAPH_NODE_TYPE_KERNEL;
  op->params = share_params(std::move(p));
  if (skipped) {
    op->body = [] {
      counters().skipped_launches.fetch_add(1);
      return CUDA_SUCCESS;
    };
  } else {
    op->body = [kernel, shape, packed] { return run_kernel(*kernel, shape, *packed); };
  }
  return CUDA_SUCCESS;
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_STREAM_ENTRY(
    cuLaunchKernel, 4000, needs_context, 0, stream,
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
     unsigned shared, CUstream stream, void **params, void **extra),
    (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra), {
      return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, params, extra);
    })

HOSTCUDA_STREAM_ENTRY(
    cuLaunchCooperativeKernel, 9000, needs_context, 0, stream,
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
     unsigned shared, CUstream stream, void **params),
    (f, gx, gy, gz, bx, by, bz, shared, stream, params), {
      return launch(f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, params, nullptr, shared);
    })

HOSTCUDA_ENTRY(cuLaunchKernelEx, 11060, needs_context, 0,
               (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
               { return launch_config(config, f, params, extra, false); })
HOSTCUDA_ENTRY(cuLaunchKernelEx_ptsz, 11060, needs_context, 0,
               (const CUlaunchConfig *config, CUfunction f, void **params, void **extra),
               { return launch_config(config, f, params, extra, true); })

extern "C" {

__attribute__((visibility("default"))) CUresult hostcuda_declare(CUstream stream, CUdeviceptr at,
                                                                 size_t bytes, int write) {
  if (bytes == 0 || at + bytes < at) return CUDA_ERROR_INVALID_VALUE;
  stream_call call(stream);
  if (!call.s) return call.error();
  auto &declared = call.s->declared;
  if (declared.size() == max_declared) return CUDA_ERROR_INVALID_VALUE;
  declared.push_back({at, bytes, write != 0});
  return CUDA_SUCCESS;
}

__attribute__((visibility("default"))) void *hostcuda_access(CUdeviceptr at, size_t bytes,
                                                             int write) {
  running_work *const work = this_threads_work();
  if (work == nullptr || !work->in_kernel) return nullptr;
  node &n = *work->n;
  stream &s = *work->s;
  const touch t{at, bytes, write != 0};
  const auto others = aliases(at, bytes);
  engine_lock lock(the_engine().mu);
  const position where{s.line, n.tick, n.serial, &n.seen, n.op.what, s.ctx, &n.site};
  // Added before the address is resolved, so that a concurrent unmap waits for this kernel.
  const bool declared = std::any_of(n.op.touches.begin(), n.op.touches.end(), [&](const touch &d) {
    return d.at <= at && at + bytes <= d.at + d.bytes && (d.write || !t.write);
  });
  if (!declared) {
    n.op.touches.push_back(t);
    if (!others.empty() && oracle_check_alias(where, t, others, false)) {
      lock.unlock();
      const auto now = aliases(at, bytes);
      lock.lock();
      if (oracle_check_alias(where, t, now, true) && current_settings().strict) {
        poison(lock, s.ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
      }
    }
    oracle_note(where, t, true);
  }
  lock.unlock();
  void *const host = t.write ? resolve(s.ctx->device, at, bytes, true)
                             : const_cast<void *>(resolve_for_reading(s.ctx->device, at, bytes));
  if (host != nullptr && !n.discard) return host;
  lock.lock();
  if (!n.faulted) {
    n.faulted = true;
    oracle_report(HOSTCUDA_ACCESS_FAULT, at, bytes, n.op.what, n.site, "hostcuda_access",
                  capture_call_site());
  }
  return nullptr;
}
}
