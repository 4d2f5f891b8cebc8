#include "stillmap/checkpoint/common/internal/batch_copier.h"

#include <algorithm>

#include "stillmap/vmm/context.h"

namespace stillmap::checkpoint {

result<transfer> transfer::create(const device &d, std::size_t streams) {
  transfer out(d);
  for (std::size_t i = 0; i < streams; ++i) {
    auto made = stream::create(d);
    if (!made) return tl::unexpected(made.error());
    out.streams_.push_back(std::move(*made));
  }
  return out;
}

status transfer::start(direction way, virtual_range range, std::byte *host, std::size_t on) {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) return guard.entered();
  const stream_handle s = streams_[on].get();
  return way == direction::to_host
             ? device_.driver().copy_to_host_async(host, range.begin, range.bytes, s)
             : device_.driver().copy_to_device_async(range.begin, host, range.bytes, s);
}

status transfer::clear(virtual_range range, std::size_t on) {
  const context_guard guard(device_.driver(), device_.context());
  if (!guard.entered()) return guard.entered();
  return device_.driver().set_bytes_async(range.begin, 0, range.bytes, streams_[on].get());
}

status transfer::wait(std::size_t on) {
  const status s = streams_[on].synchronize();
  if (s) return s;
  // A call that failed may not have waited, and what it should have waited for may still run.
  const context_guard guard(device_.driver(), device_.context());
  if (guard.entered()) [[maybe_unused]]
    const status all = device_.driver().synchronize_context();
  return s;
}

status transfer::copy(direction way, std::span<const piece> pieces, std::byte *host,
                      std::size_t part) {
  const context_guard guard(device_.driver(), device_.context());  // once for all
  if (!guard.entered()) return guard.entered();
  std::size_t next = 0;
  status outcome;
  for (const piece &p : in_parts(pieces, part)) {
    outcome = start(way, p.range, host + p.offset, next++ % streams_.size());
    if (!outcome) break;
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (const status s = wait(i); !s && outcome) outcome = s;
  }
  return outcome;
}

std::vector<piece> in_parts(std::span<const piece> pieces, std::size_t part_bytes) {
  std::vector<piece> parts;
  for (const piece &p : pieces) {
    for (std::size_t done = 0; done < p.range.bytes;) {
      const std::size_t bytes = std::min(part_bytes, p.range.bytes - done);
      parts.push_back({{p.range.begin + done, bytes}, p.offset + done});
      done += bytes;
    }
  }
  return parts;
}

}  // namespace stillmap::checkpoint
