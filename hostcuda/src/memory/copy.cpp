#include "hostcuda/src/memory/copy.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/execution.h"
#include "hostcuda/src/memory/bytes.h"

namespace hostcuda {
namespace {

// Copies up to this size run on the calling thread: about 30 microseconds, the time to wake a
// thread.
constexpr std::size_t brief_copy = std::size_t{512} << 10;

// Bytes from the start of the first row to the end of the last row.
std::size_t span_of(const copy_side &s, const copy_request &r) {
  return r.rows <= 1 ? r.width : s.pitch * (r.rows - 1) + r.width;
}

// Registry information about one side at the time of the call.
struct side_facts {
  bool known = false;   // the address is registered
  bool device = false;  // device memory, for the counters and the unbacked mode
};

bool look_locked(const copy_side &s, std::size_t span, bool write, side_facts *facts) {
  memory_registry &b = the_memory();
  facts->known = known_locked(s.at);
  if (!facts->known) return s.kind != side::device;
  if (resolve_locked(s.device, s.at, span, write, peer_rule::copies) == nullptr) return false;
  const auto k = containing(b.blocks, s.at);
  facts->device = k != b.blocks.end() ? k->second.owner != nullptr
                                      : containing(b.mappings, s.at) != b.mappings.end() ||
                                            containing(b.chunks, s.at) != b.chunks.end();
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
    if (device_sides != 0 && !host_can_touch(device_sides * r.width * r.rows))
      return CUDA_ERROR_OUT_OF_MEMORY;
    if (r.rows <= 1 || (r.to.pitch == r.width && r.from.pitch == r.width)) {
      move(sides[0], sides[1]);
    } else {
      char *const d = sides[0].host;
      const char *const s = sides[1].host;
      for (std::size_t row = 0; row < r.rows; ++row)
        move_bytes(d + row * r.to.pitch, s + row * r.from.pitch, r.width);
    }
  }
  count(to, from, r.width * r.rows);
  return CUDA_SUCCESS;
}

// Copies the source into a staging buffer, as CUDA does for asynchronous copies from pageable
// memory, which the program may change after the call.
std::shared_ptr<char[]> stage(copy_request *r) {
  const std::size_t bytes = r->width * r->rows;
  std::shared_ptr<char[]> buffer(new char[bytes]);
  const auto *s = reinterpret_cast<const char *>(r->from.at);
  for (std::size_t row = 0; row < r->rows; ++row)
    move_bytes(buffer.get() + row * r->width, s + row * r->from.pitch, r->width);
  r->from.at = reinterpret_cast<CUdeviceptr>(buffer.get());
  r->from.pitch = r->width;
  return buffer;
}

}  // namespace

CUresult copy(const copy_request &request, CUstream stream, bool wait) {
  if (wait && capture_forbids_unsafe_call()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (request.width == 0 || request.rows == 0) return CUDA_SUCCESS;
  if (request.to.at == 0 || request.from.at == 0) return CUDA_ERROR_INVALID_VALUE;
  copy_request r = request;
  side_facts to;
  side_facts from;
  {
    std::shared_lock<std::shared_mutex> lock(the_memory().mutex);
    if (!look_locked(r.to, span_of(r.to, r), true, &to) ||
        !look_locked(r.from, span_of(r.from, r), false, &from))
      return CUDA_ERROR_INVALID_VALUE;
  }
  operation op{};
  op.what = r.what;
  if (to.known) op.touches.push_back({r.to.at, span_of(r.to, r), true});
  if (from.known) op.touches.push_back({r.from.at, span_of(r.from, r), false});
  if (wait) {
    op.body = [r, to, from] { return run(r, to, from); };
    return enqueue_and_wait(std::move(op), stream);
  }
  op.body = [r, to, from] { return run(r, to, from); };
  op.brief = r.width * r.rows <= brief_copy;
  if (!from.known && !unbacked()) {
    op.stage = [r, to, from]() -> std::function<CUresult()> {
      copy_request later = r;
      return [staged = stage(&later), later, to, from] { return run(later, to, from); };
    };
  }
  return enqueue(stream, std::move(op));
}

}  // namespace hostcuda
