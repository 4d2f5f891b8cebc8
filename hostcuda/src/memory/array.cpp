// Life of arrays and mipmapped arrays, and the functions that create, describe and destroy them.
#include "hostcuda/src/memory/array.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/memory_parts.h"

namespace hostcuda {
namespace {

struct mipmapped_array {
  std::vector<CUarray> levels;
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  context *ctx = nullptr;
};

// Its mutex is not held during calls of other parts. Handles are numbers that are used once, so a
// stale one is found.
struct array_table {
  std::mutex mutex;
  std::map<CUarray, cuda_array> arrays;
  std::map<CUmipmappedArray, mipmapped_array> mipmapped;
  std::uintptr_t last = 0x1000;

  template <class Handle>
  Handle next_handle() {
    last += 16;
    return reinterpret_cast<Handle>(last);
  }
};

array_table &array_handles() {
  static array_table *const t = new array_table;
  return *t;
}

// Levels begin on addresses that are aligned as those of cuMemAlloc.
constexpr std::size_t kLevelAlignment = 512;

CUresult create_array(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR &form) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  cuda_array a;
  a.form = form;
  a.ctx = current_context();
  CUresult r = check_array(form, a.ctx->device, false, &a.element);
  if (r == CUDA_SUCCESS) r = add_block(a.bytes(), true, &a.at);
  if (r != CUDA_SUCCESS) return r;
  array_table &t = array_handles();
  std::lock_guard<std::mutex> lock(t.mutex);
  *out = t.next_handle<CUarray>();
  t.arrays.emplace(*out, a);
  return CUDA_SUCCESS;
}

CUresult destroy_array(CUarray handle) {
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  cuda_array a;
  {
    array_table &t = array_handles();
    std::lock_guard<std::mutex> lock(t.mutex);
    const auto it = t.arrays.find(handle);
    if (it == t.arrays.end() || it->second.whole != nullptr) return CUDA_ERROR_INVALID_HANDLE;
    a = it->second;
    t.arrays.erase(it);
  }
  return end_owned_block(a.at, a.bytes(), a.ctx->device, "cuArrayDestroy");
}

cuda_array level_of(const cuda_array &first, unsigned level) {
  const auto halved = [&](std::size_t n) {
    return n == 0 ? 0 : std::max<std::size_t>(n >> level, 1);
  };
  cuda_array a = first;
  a.form.Width = halved(first.form.Width);
  a.form.Height = halved(first.form.Height);
  const unsigned has_layers = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;
  if ((first.form.Flags & has_layers) == 0) a.form.Depth = halved(first.form.Depth);
  return a;
}

// <cuda.h>: the number of levels is clamped to 1 + floor(log2(the largest extent)).
unsigned level_count(const CUDA_ARRAY3D_DESCRIPTOR &form, unsigned wanted) {
  const std::size_t largest = std::max({form.Width, form.Height, form.Depth});
  return std::clamp(wanted, 1U, static_cast<unsigned>(std::bit_width(largest)));
}

CUresult create_mipmapped(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *form,
                          unsigned wanted) {
  if (out == nullptr || form == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  cuda_array first;
  first.form = *form;
  first.ctx = current_context();
  if (const CUresult r = check_array(*form, first.ctx->device, true, &first.element);
      r != CUDA_SUCCESS)
    return r;
  std::vector<cuda_array> levels;
  mipmapped_array m;
  m.ctx = first.ctx;
  for (unsigned i = 0, count = level_count(*form, wanted); i < count; ++i) {
    levels.push_back(level_of(first, i));
    levels.back().at = m.bytes;
    m.bytes += (levels.back().bytes() + kLevelAlignment - 1) / kLevelAlignment * kLevelAlignment;
  }
  if (const CUresult r = add_block(m.bytes, true, &m.at); r != CUDA_SUCCESS) return r;
  array_table &t = array_handles();
  std::lock_guard<std::mutex> lock(t.mutex);
  *out = t.next_handle<CUmipmappedArray>();
  for (cuda_array &a : levels) {
    a.at += m.at;
    a.whole = *out;
    m.levels.push_back(t.next_handle<CUarray>());
    t.arrays.emplace(m.levels.back(), a);
  }
  t.mipmapped.emplace(*out, m);
  return CUDA_SUCCESS;
}

CUresult destroy_mipmapped(CUmipmappedArray handle) {
  if (capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  mipmapped_array m;
  {
    array_table &t = array_handles();
    std::lock_guard<std::mutex> lock(t.mutex);
    const auto it = t.mipmapped.find(handle);
    if (it == t.mipmapped.end()) return CUDA_ERROR_INVALID_HANDLE;
    m = it->second;
    for (const CUarray level : m.levels) t.arrays.erase(level);
    t.mipmapped.erase(it);
  }
  return end_owned_block(m.at, m.bytes, m.ctx->device, "cuMipmappedArrayDestroy");
}

CUresult get_level(CUarray *out, CUmipmappedArray handle, unsigned level) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  array_table &t = array_handles();
  std::lock_guard<std::mutex> lock(t.mutex);
  const auto it = t.mipmapped.find(handle);
  if (it == t.mipmapped.end()) return CUDA_ERROR_INVALID_HANDLE;
  if (level >= it->second.levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *out = it->second.levels[level];
  return CUDA_SUCCESS;
}

}  // namespace

CUresult find_array(CUarray handle, cuda_array *out) {
  array_table &t = array_handles();
  std::lock_guard<std::mutex> lock(t.mutex);
  const auto it = t.arrays.find(handle);
  if (it == t.arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = it->second;
  return CUDA_SUCCESS;
}

void forget_arrays(const context *ctx) {
  array_table &t = array_handles();
  std::lock_guard<std::mutex> lock(t.mutex);
  std::erase_if(t.arrays, [ctx](const auto &entry) { return entry.second.ctx == ctx; });
  std::erase_if(t.mipmapped, [ctx](const auto &entry) { return entry.second.ctx == ctx; });
}

void reset_arrays() {
  array_table &t = array_handles();
  std::lock_guard<std::mutex> lock(t.mutex);
  t.arrays.clear();
  t.mipmapped.clear();
}

}  // namespace hostcuda

using namespace hostcuda;

HOSTCUDA_ENTRY(cuArrayCreate_v2, 3020, needs_context, 0,
               (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *d), {
                 if (d == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 return create_array(out, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
               })
HOSTCUDA_ENTRY(cuArray3DCreate_v2, 3020, needs_context, 0,
               (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *d),
               { return d == nullptr ? CUDA_ERROR_INVALID_VALUE : create_array(out, *d); })

HOSTCUDA_ENTRY(cuArrayGetDescriptor_v2, 3020, needs_context, 0,
               (CUDA_ARRAY_DESCRIPTOR * out, CUarray handle), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 cuda_array a;
                 if (const CUresult r = find_array(handle, &a); r != CUDA_SUCCESS) return r;
                 *out = {a.form.Width, a.form.Height, a.form.Format, a.form.NumChannels};
                 return CUDA_SUCCESS;
               })
HOSTCUDA_ENTRY(cuArray3DGetDescriptor_v2, 3020, needs_context, 0,
               (CUDA_ARRAY3D_DESCRIPTOR * out, CUarray handle), {
                 if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
                 cuda_array a;
                 if (const CUresult r = find_array(handle, &a); r != CUDA_SUCCESS) return r;
                 *out = a.form;
                 return CUDA_SUCCESS;
               })
HOSTCUDA_ENTRY(cuArrayDestroy, 2000, needs_context | ignores_sticky, 0, (CUarray handle),
               { return destroy_array(handle); })

HOSTCUDA_ENTRY(cuMipmappedArrayCreate, 5000, needs_context, 0,
               (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels),
               { return create_mipmapped(out, d, levels); })
HOSTCUDA_ENTRY(cuMipmappedArrayGetLevel, 5000, needs_context, 0,
               (CUarray * out, CUmipmappedArray handle, unsigned level),
               { return get_level(out, handle, level); })
HOSTCUDA_ENTRY(cuMipmappedArrayDestroy, 5000, needs_context | ignores_sticky, 0,
               (CUmipmappedArray handle), { return destroy_mipmapped(handle); })

// <cuda.h>: INVALID_VALUE unless the array was created as a sparse or deferred one, and there are none.
HOSTCUDA_ENTRY(cuArrayGetMemoryRequirements, 11060, plain, 0,
               (CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUarray, CUdevice),
               { return CUDA_ERROR_INVALID_VALUE; })
HOSTCUDA_ENTRY(cuMipmappedArrayGetMemoryRequirements, 11060, plain, 0,
               (CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUmipmappedArray, CUdevice),
               { return CUDA_ERROR_INVALID_VALUE; })
HOSTCUDA_ENTRY(cuArrayGetSparseProperties, 11010, plain, 0,
               (CUDA_ARRAY_SPARSE_PROPERTIES *, CUarray), { return CUDA_ERROR_INVALID_VALUE; })
HOSTCUDA_ENTRY(cuMipmappedArrayGetSparseProperties, 11010, plain, 0,
               (CUDA_ARRAY_SPARSE_PROPERTIES *, CUmipmappedArray),
               { return CUDA_ERROR_INVALID_VALUE; })
