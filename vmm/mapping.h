// One page mapped by hand at an offset of a reservation, with access for a list of devices.
#pragma once

#include "stillmap/vmm/page.h"
#include "stillmap/vmm/reservation.h"

namespace stillmap {

// Owns the mapping. The destructor waits for the device's work (as cuMemFree does) and unmaps, unless
// unmap(fence) was called.
class mapping {
 public:
  // Maps `page` at `offset` bytes. An empty `access` means read and write for the reservation's device.
  // Requires: [offset, offset + page bytes) of `r` is unmapped.                         (checked)
  // Errors:   as address_space::apply.
  // Cost:     one map, one set-access.
  static result<mapping> create(const reservation &r, std::size_t offset, page_ptr page,
                                std::vector<access_grant> access = {});
  mapping(mapping &&o) noexcept;
  mapping &operator=(mapping &&o) noexcept;
  ~mapping();

  virtual_range range() const { return range_; }
  const page_ptr &backing() const { return page_; }

  // Replaces the access rights.
  // Errors: as address_space::apply; the old access stays.
  // Cost:   one set-access.
  status set_access(std::vector<access_grant> access);

  // Unmaps once `idle` has passed, without blocking the host. The object is empty afterwards.
  // Errors: the driver's; the mapping stays.
  status unmap(const fence &idle);

 private:
  mapping(device d, std::shared_ptr<address_block> block, virtual_range range, page_ptr page)
      : device_(std::move(d)), block_(std::move(block)), range_(range), page_(std::move(page)) {}
  void destroy() noexcept;
  device device_;
  std::shared_ptr<address_block> block_;
  virtual_range range_;
  page_ptr page_;
};

}  // namespace stillmap
