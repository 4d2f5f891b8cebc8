#include "stillmap/checkpoint/common/batch_copier.h"

#include <algorithm>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::checkpoint {

result<batch_copier> batch_copier::create(const device &d, std::size_t streams) {
  const operation_scope scope("batch_copier::create");
  batch_copier out(d);
  for (std::size_t i = 0; i < streams; ++i) {
    STILLMAP_ASSIGN_OR_RETURN(stream made, stream::create(d));
    out.streams_.push_back(std::move(made));
  }
  return out;
}

status batch_copier::start(direction way, virtual_range range, std::byte *host,
                           std::size_t stream) {
  const operation_scope scope("batch_copier::start");
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const stream_handle s = streams_[stream].get();
  return way == direction::to_host
             ? device_.driver().copy_to_host_async(host, range.begin, range.bytes, s)
             : device_.driver().copy_to_device_async(range.begin, host, range.bytes, s);
}

status batch_copier::clear(virtual_range range, std::size_t stream) {
  const operation_scope scope("batch_copier::clear");
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  return device_.driver().set_bytes_async(range.begin, 0, range.bytes, streams_[stream].get());
}

status batch_copier::wait(std::size_t stream) {
  const operation_scope scope("batch_copier::wait");
  const status s = streams_[stream].synchronize();
  if (s) return s;
  // A synchronize that failed may not have waited, and the copies may still run.
  const context_guard guard(device_.driver(), device_.context());
  // The first error is the one to return.
  if (guard.entered()) (void)device_.driver().synchronize_context();
  return s;
}

status batch_copier::copy(direction way, std::span<const piece> pieces, std::byte *host,
                          std::size_t part_bytes) {
  const operation_scope scope("batch_copier::copy");
  // Entered once here, so that start() finds the context current.
  const context_guard guard(device_.driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  std::size_t next = 0;
  status outcome;
  part_sequence parts(pieces, part_bytes);
  while (const std::optional<piece> p = outcome ? parts.next() : std::nullopt) {
    outcome = start(way, p->range, host + p->offset, next++ % streams_.size());
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (const status s = wait(i); !s && outcome) outcome = s;
  }
  return outcome;
}

std::optional<piece> part_sequence::next() {
  while (!pieces_.empty() && done_ == pieces_.front().range.bytes) {
    pieces_ = pieces_.subspan(1);
    done_ = 0;
  }
  if (pieces_.empty()) return std::nullopt;
  const piece &p = pieces_.front();
  const std::size_t bytes = std::min(part_bytes_, p.range.bytes - done_);
  const piece part{{p.range.begin + done_, bytes}, p.offset + done_};
  done_ += bytes;
  return part;
}

std::size_t part_sequence::size() const {
  std::size_t n = 0;
  for (const piece &p : pieces_) n += (p.range.bytes + part_bytes_ - 1) / part_bytes_;
  return n;
}

}  // namespace stillmap::checkpoint
