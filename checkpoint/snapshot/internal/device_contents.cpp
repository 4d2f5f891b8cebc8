#include "stillmap/checkpoint/snapshot/internal/device_contents.h"

#include <algorithm>

#include "stillmap/checkpoint/snapshot/internal/failures.h"

namespace stillmap::snapshot {

device_contents::device_contents(checkpoint::transfer by, std::vector<page> pages)
    : by_(std::move(by)), pages_(std::move(pages)) {
  for (std::size_t i = 0; i < by_.streams(); ++i) idle_.push_back(i);
}

result<std::unique_ptr<device_contents>> device_contents::create(const device &d,
                                                                 const checkpoint::memory_layout &l,
                                                                 std::size_t streams) {
  const auto at = checkpoint::readable_at(l);
  if (!at) return tl::unexpected(at.error());
  std::vector<page> pages;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    pages.push_back({end, l.pages[i].bytes, (*at)[i]});
    end += l.pages[i].bytes;
  }
  auto by = checkpoint::transfer::create(d, streams);
  if (!by) return tl::unexpected(by.error());
  return std::unique_ptr<device_contents>(new device_contents(std::move(*by), std::move(pages)));
}

void device_contents::learn_digests(const device &d, std::uint32_t chunk_bytes) {
  std::vector<virtual_range> ranges;
  for (const page &p : pages_) {
    for (std::size_t at = 0; at < p.bytes; at += chunk_bytes) {
      const std::size_t bytes = std::min<std::size_t>(chunk_bytes, p.bytes - at);
      ranges.push_back({p.at + at, bytes});
      chunks_.push_back({p.offset + at, bytes});
    }
  }
  digests_ = std::make_unique<digests_ahead>(d, std::move(ranges));
}

std::optional<image::digest> device_contents::digest_of(std::uint64_t offset, std::size_t bytes) {
  const auto found =
      std::lower_bound(chunks_.begin(), chunks_.end(), offset,
                       [](const looked_at &c, std::uint64_t at) { return c.offset < at; });
  if (found == chunks_.end() || found->offset != offset || found->bytes != bytes) {
    return std::nullopt;
  }
  return digests_->of(static_cast<std::size_t>(found - chunks_.begin()));
}

image::outcome<image::bytes_view> device_contents::chunk(std::uint64_t offset,
                                                         std::span<std::byte> room) {
  const page &p =
      *std::prev(std::upper_bound(pages_.begin(), pages_.end(), offset,
                                  [](std::uint64_t at, const page &x) { return at < x.offset; }));
  const virtual_range range{p.at + static_cast<std::size_t>(offset - p.offset), room.size()};
  const std::size_t on = take_stream();
  status s = by_.start(checkpoint::direction::to_host, range, room.data(), on);
  if (status done = by_.wait(on); s) s = done;
  give_back(on);
  if (!s) return pass_on(s.error());
  return room;
}

std::size_t device_contents::take_stream() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return !idle_.empty(); });
  const std::size_t on = idle_.back();
  idle_.pop_back();
  return on;
}

void device_contents::give_back(std::size_t stream) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(stream);
  }
  given_back_.notify_one();
}

}  // namespace stillmap::snapshot
