#include "stillmap/checkpoint/snapshot/internal/device_contents.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {

device_contents::device_contents(checkpoint::batch_copier copier, std::vector<page> pages)
    : copier_(std::move(copier)), pages_(std::move(pages)) {
  for (std::size_t i = 0; i < copier_.streams(); ++i) idle_.push_back(i);
}

result<std::unique_ptr<device_contents>> device_contents::create(const device &d,
                                                                 const checkpoint::memory_layout &l,
                                                                 std::size_t streams) {
  STILLMAP_ASSIGN_OR_RETURN(const auto at, checkpoint::readable_addresses(l));
  std::vector<page> pages;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    pages.push_back({end, l.pages[i].bytes, at[i]});
    end += l.pages[i].bytes;
  }
  STILLMAP_ASSIGN_OR_RETURN(auto copier, checkpoint::batch_copier::create(d, streams));
  return std::unique_ptr<device_contents>(new device_contents(std::move(copier), std::move(pages)));
}

void device_contents::prefetch_digests(const device &d, std::uint32_t chunk_bytes,
                                       const image::digest_key &key) {
  std::vector<virtual_range> ranges;
  for (const page &p : pages_) {
    for (std::size_t at = 0; at < p.bytes; at += chunk_bytes) {
      const std::size_t bytes = std::min<std::size_t>(chunk_bytes, p.bytes - at);
      ranges.push_back({p.at + at, bytes});
      chunks_.push_back({p.offset + at, bytes});
    }
  }
  digests_ = std::make_unique<digest_prefetch>(d, std::move(ranges), key);
}

std::optional<image::digest> device_contents::digest_of(std::uint64_t offset, std::size_t bytes) {
  const auto found =
      std::lower_bound(chunks_.begin(), chunks_.end(), offset,
                       [](const chunk_range &c, std::uint64_t at) { return c.offset < at; });
  if (found == chunks_.end() || found->offset != offset || found->bytes != bytes) {
    return std::nullopt;
  }
  return digests_->of(static_cast<std::size_t>(found - chunks_.begin()));
}

result<image::bytes_view> device_contents::chunk(std::uint64_t offset, std::span<std::byte> room) {
  const page &p =
      *std::prev(std::upper_bound(pages_.begin(), pages_.end(), offset,
                                  [](std::uint64_t at, const page &x) { return at < x.offset; }));
  const virtual_range range{p.at + static_cast<std::size_t>(offset - p.offset), room.size()};
  const std::size_t on = take_stream();
  status s = copier_.start(checkpoint::direction::to_host, range, room.data(), on);
  if (status done = copier_.wait(on); s) s = done;
  return_stream(on);
  STILLMAP_RETURN_IF_ERROR(s);
  return room;
}

std::size_t device_contents::take_stream() {
  unique_lock lock(mutex_);
  stream_returned_.wait(lock, [this]() STILLMAP_REQUIRES(mutex_) { return !idle_.empty(); });
  const std::size_t on = idle_.back();
  idle_.pop_back();
  return on;
}

void device_contents::return_stream(std::size_t stream) {
  {
    const lock_guard lock(mutex_);
    idle_.push_back(stream);
  }
  stream_returned_.notify_one();
}

}  // namespace stillmap::snapshot
