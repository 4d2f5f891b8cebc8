#include "stillmap/checkpoint/workbench.h"

#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {

result<workbench> workbench::create(const device &d, std::span<const page_ref> pages) {
  std::size_t bytes = 0;
  for (const page_ref &p : pages) bytes += p->bytes();
  auto made = reservation::create(d, bytes, {});
  if (!made) return tl::unexpected(made.error());
  workbench out(d, std::move(*made));
  remap_plan plan({{on_device(d.ordinal()), access_mode::read_write}});
  device_address next = out.room_.range().begin;
  for (const page_ref &p : pages) {
    out.at_.push_back(next);
    plan.map(next, p);
    next = next + p->bytes();
  }
  if (status s = d.space().apply(std::move(plan)); !s) return tl::unexpected(s.error());
  out.mapped_ = true;
  return out;
}

workbench &workbench::operator=(workbench &&o) noexcept {
  clear();
  device_ = o.device_;
  room_ = std::move(o.room_);
  at_ = std::move(o.at_);
  mapped_ = std::exchange(o.mapped_, false);
  return *this;
}

// Retires, so that what the driver refuses now is tried again by whoever needs the room.
void workbench::clear() {
  if (!std::exchange(mapped_, false)) return;
  device_.space().let_go(room_.block(), room_.range(), fence());
  device_.space().collect();
}

}  // namespace stillmap::checkpoint
