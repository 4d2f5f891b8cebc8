// Pages side by side at addresses of their own, where the device may read and write them whatever
// their places elsewhere allow, and whatever happens to those.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/reservation.h"

namespace stillmap::checkpoint {

// Owner of the addresses, not of the pages. Threads: externally synchronised.
class staging_mapping {
 public:
  // Errors: as reserving and remapping. Cost: one reserve, one map a page, one set-access.
  static result<staging_mapping> create(const device &d, std::span<const page_ptr> pages);
  // Room for pages of so many bytes, which come later. Errors: as reserving. Cost: one reserve.
  static result<staging_mapping> reserve(const device &d, std::size_t bytes);
  // Puts these behind those that are there. Requires: there is room. Failure: as before.
  // Errors: as remapping. Cost: one map a page, one set-access.
  status add(std::span<const page_ptr> pages);
  staging_mapping(staging_mapping &&o) noexcept
      : device_(o.device_),
        room_(std::move(o.room_)),
        at_(std::move(o.at_)),
        mapped_(std::exchange(o.mapped_, 0)) {}
  staging_mapping &operator=(staging_mapping &&o) noexcept;
  // Requires: nothing uses it any more.
  ~staging_mapping() { clear(); }

  // Where each page is.
  const std::vector<device_address> &at() const { return at_; }

 private:
  staging_mapping(const device &d, reservation room) : device_(d), room_(std::move(room)) {}
  void clear();
  device device_;
  reservation room_;
  std::vector<device_address> at_;
  std::size_t mapped_ = 0;  // bytes, from the beginning
};

}  // namespace stillmap::checkpoint
