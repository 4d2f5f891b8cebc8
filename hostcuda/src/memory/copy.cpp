#include "hostcuda/src/memory/copy.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/execution/node_params.h"
#include "hostcuda/src/memory/bytes.h"

namespace hostcuda {
namespace {

// Copies up to this size run on the calling thread: about 30 microseconds, the time to wake a
// thread.
constexpr std::size_t brief_copy = std::size_t{512} << 10;

// Bytes from the start of the first row to the end of the last row.
std::size_t span_of(const copy_side &s, const copy_request &r) {
  const std::size_t slice = r.rows <= 1 ? r.width : s.pitch * (r.rows - 1) + r.width;
  return r.slices <= 1 ? slice : s.slice * (r.slices - 1) + slice;
}

std::size_t bytes_of(const copy_request &r) {
  return r.width * r.rows * r.slices;
}

// Registry information about one side at the time of the call.
struct side_facts {
  bool known = false;   // the address is registered
  bool device = false;  // device memory, for the counters and the unbacked mode
  bool host = false;    // pageable, pinned or registered memory, not managed memory
};

bool look_locked(const copy_side &s, std::size_t span, bool write, side_facts *facts) {
  memory_registry &b = the_memory();
  facts->known = known_locked(s.at);
  if (!facts->known) {
    facts->host = true;
    return s.kind != side::device;
  }
  if (resolve_locked(s.device, s.at, span, write, peer_rule::copies) == nullptr) return false;
  const auto k = containing(b.blocks, s.at);
  facts->device = k != b.blocks.end() ? k->second.owner != nullptr
                                      : containing(b.mappings, s.at) != b.mappings.end() ||
                                            containing(b.chunks, s.at) != b.chunks.end();
  facts->host = !facts->device && containing(b.host, s.at) != b.host.end();
  return true;
}

void count(const side_facts &to, const side_facts &from, std::size_t bytes) {
  if (to.device && from.device) {
    counters().bytes_dtod += bytes;
  } else if (to.device) {
    counters().bytes_htod += bytes;
  } else if (from.device) {
    counters().bytes_dtoh += bytes;
  }
}

// Iterates over the contiguous parts of one side.
class reader {
 public:
  explicit reader(const pinned_access &a)
      : only_{a.host, a.bytes}, next_(a.pieces.empty() ? &only_ : a.pieces.data()) {}
  char *at() const { return next_->at + done_; }
  std::size_t bytes() const { return next_->bytes - done_; }
  void skip(std::size_t n) {
    done_ += n;
    if (done_ != next_->bytes) return;
    ++next_;
    done_ = 0;
  }

 private:
  const host_bytes only_;
  const host_bytes *next_;
  std::size_t done_ = 0;
};

void move(const pinned_access &to, const pinned_access &from) {
  reader d(to), s(from);
  for (std::size_t left = to.bytes; left != 0;) {
    const std::size_t n = std::min(d.bytes(), s.bytes());
    move_bytes(d.at(), s.at(), n);
    d.skip(n);
    s.skip(n);
    left -= n;
  }
}

CUresult run(const copy_request &r, const side_facts &to, const side_facts &from) {
  pinned_access sides[2];
  sides[0] = {r.to.device, r.to.at, span_of(r.to, r), true, !to.known, nullptr, {}};
  sides[1] = {r.from.device, r.from.at, span_of(r.from, r), false, !from.known, nullptr, {}};
  pin_guard pins;
  if (!pins.take(sides, 2)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (!unbacked() || (!to.device && !from.device)) {
    const std::size_t device_sides = (to.device ? 1U : 0U) + (from.device ? 1U : 0U);
    if (device_sides != 0 && !host_can_touch(device_sides * bytes_of(r)))
      return CUDA_ERROR_OUT_OF_MEMORY;
    const bool whole_rows = r.rows <= 1 || (r.to.pitch == r.width && r.from.pitch == r.width);
    if (whole_rows && r.slices <= 1) {
      move(sides[0], sides[1]);
    } else {
      char *const d = sides[0].host;
      const char *const s = sides[1].host;
      for (std::size_t slice = 0; slice < r.slices; ++slice)
        for (std::size_t row = 0; row < r.rows; ++row)
          move_bytes(d + slice * r.to.slice + row * r.to.pitch,
                     s + slice * r.from.slice + row * r.from.pitch, r.width);
    }
  }
  count(to, from, bytes_of(r));
  return CUDA_SUCCESS;
}

// Copies the source into a staging buffer, as CUDA does for asynchronous copies from pageable
// memory, which the program may change after the call.
std::shared_ptr<char[]> stage(copy_request *r) {
  std::shared_ptr<char[]> buffer(new char[bytes_of(*r)]);
  const auto *s = reinterpret_cast<const char *>(r->from.at);
  char *to = buffer.get();
  for (std::size_t slice = 0; slice < r->slices; ++slice)
    for (std::size_t row = 0; row < r->rows; ++row, to += r->width)
      move_bytes(to, s + slice * r->from.slice + row * r->from.pitch, r->width);
  r->from.at = reinterpret_cast<CUdeviceptr>(buffer.get());
  r->from.pitch = r->width;
  r->from.slice = r->width * r->rows;
  return buffer;
}

// One side of the parameters of a copy node.
struct side_values {
  CUmemorytype type = CU_MEMORYTYPE_ARRAY;
  void *host = nullptr;
  CUdeviceptr device = 0;
  std::size_t pitch = 0;
  std::size_t height = 0;
};

side_values values_of(const copy_side &s, const copy_request &r) {
  side_values v;
  if (s.origin.array != nullptr) return v;
  v.type = s.kind == side::device ? CU_MEMORYTYPE_DEVICE
           : s.kind == side::host ? CU_MEMORYTYPE_HOST
                                  : CU_MEMORYTYPE_UNIFIED;
  if (s.kind == side::host) {
    v.host = as_pointer(s.at);
  } else {
    v.device = s.at;
  }
  // A copy of one row or slice has no pitch or height.
  v.pitch = r.rows > 1 || r.slices > 1 ? s.pitch : r.width;
  v.height = r.slices > 1 ? s.slice / v.pitch : r.rows;
  return v;
}

// The parameters of a copy node.
CUDA_MEMCPY3D values_of(const copy_request &r) {
  const side_values from = values_of(r.from, r);
  const side_values to = values_of(r.to, r);
  CUDA_MEMCPY3D c{};
  c.srcXInBytes = r.from.origin.x;
  c.srcY = r.from.origin.y;
  c.srcZ = r.from.origin.z;
  c.srcMemoryType = from.type;
  c.srcHost = from.host;
  c.srcDevice = from.device;
  c.srcArray = r.from.origin.array;
  c.srcPitch = from.pitch;
  c.srcHeight = from.height;
  c.dstXInBytes = r.to.origin.x;
  c.dstY = r.to.origin.y;
  c.dstZ = r.to.origin.z;
  c.dstMemoryType = to.type;
  c.dstHost = to.host;
  c.dstDevice = to.device;
  c.dstArray = r.to.origin.array;
  c.dstPitch = to.pitch;
  c.dstHeight = to.height;
  c.WidthInBytes = r.width;
  c.Height = r.rows;
  c.Depth = r.slices;
  return c;
}

}  // namespace

namespace {

CUresult make_copy(const copy_request &request, operation *op, bool *synchronous) {
  op->what = request.what;
  op->body = [] { return CUDA_SUCCESS; };
  if (bytes_of(request) == 0) return CUDA_SUCCESS;
  if (request.to.at == 0 || request.from.at == 0) return CUDA_ERROR_INVALID_VALUE;
  const copy_request r = request;
  side_facts to;
  side_facts from;
  {
    std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
    if (!look_locked(r.to, span_of(r.to, r), true, &to) ||
        !look_locked(r.from, span_of(r.from, r), false, &from))
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (to.known) op->touches.push_back({r.to.at, span_of(r.to, r), true});
  if (from.known) op->touches.push_back({r.from.at, span_of(r.from, r), false});
  op->body = [r, to, from] { return run(r, to, from); };
  op->brief = bytes_of(r) <= brief_copy;
  *synchronous = !to.known || (to.host && from.host);
  if (!from.known && !unbacked()) {
    op->stage = [r, to, from]() -> std::function<CUresult()> {
      copy_request later = r;
      return [staged = stage(&later), later, to, from] { return run(later, to, from); };
    };
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult make_copy(const copy_request &request, operation *op) {
  bool synchronous = false;
  return make_copy(request, op, &synchronous);
}

CUresult queue_copy(const copy_request &request, operation op, CUstream stream) {
  if (bytes_of(request) == 0) return CUDA_SUCCESS;
  op.describe = [&request] {
    return share_params(copy_params{values_of(request), handle_of(current_context())});
  };
  return enqueue(stream, std::move(op));
}

CUresult copy(const copy_request &request, CUstream stream, bool wait) {
  if (wait && capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (bytes_of(request) == 0) return CUDA_SUCCESS;
  operation op{};
  bool synchronous = false;
  if (const CUresult r = make_copy(request, &op, &synchronous); r != CUDA_SUCCESS) return r;
  if (wait) {
    op.stage = nullptr;
    op.brief = false;
    return enqueue_and_wait(std::move(op), stream);
  }
  // CUDA: an asynchronous copy to pageable memory, or between host memory, returns when it is done.
  if (synchronous) {
    op.stage = nullptr;
    op.host_waits = true;
  }
  return queue_copy(request, std::move(op), stream);
}

}  // namespace hostcuda
