#include "stillmap/checkpoint/common/internal/staging_mapping.h"

#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {

result<staging_mapping> staging_mapping::create(const device &d, std::span<const page_ptr> pages) {
  std::size_t bytes = 0;
  for (const page_ptr &p : pages) bytes += p->bytes();
  auto out = reserve(d, bytes);
  if (!out) return out;
  if (status s = out->add(pages); !s) return tl::unexpected(s.error());
  return out;
}

result<staging_mapping> staging_mapping::reserve(const device &d, std::size_t bytes) {
  auto made = reservation::create(d, bytes, {});
  if (!made) return tl::unexpected(made.error());
  return staging_mapping(d, std::move(*made));
}

status staging_mapping::add(std::span<const page_ptr> pages) {
  remap_plan plan({{on_device(device_.ordinal()), access_mode::read_write}});
  std::vector<device_address> at;
  std::size_t end = mapped_;
  for (const page_ptr &p : pages) {
    at.push_back(room_.range().begin + end);
    plan.map(at.back(), p);
    end += p->bytes();
  }
  if (status s = device_.space().apply(std::move(plan)); !s) return s;
  at_.insert(at_.end(), at.begin(), at.end());
  mapped_ = end;
  return {};
}

staging_mapping &staging_mapping::operator=(staging_mapping &&o) noexcept {
  clear();
  device_ = o.device_;
  room_ = std::move(o.room_);
  at_ = std::move(o.at_);
  mapped_ = std::exchange(o.mapped_, 0);
  return *this;
}

// Retires, so that what the driver refuses now is tried again by whoever needs the room.
void staging_mapping::clear() {
  const std::size_t bytes = std::exchange(mapped_, 0);
  at_.clear();
  if (bytes == 0) return;
  device_.space().let_go(room_.block(), {room_.range().begin, bytes}, fence());
  device_.space().collect();
}

}  // namespace stillmap::checkpoint
