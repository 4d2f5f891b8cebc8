// A temporary mapping that makes pages adjacent and writable by the device, whatever the access
// rights of their other mappings and however those change.
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
  // Maps the pages in order, without gaps.
  // Errors: as reservation::create and address_space::apply.
  // Cost:   one reserve, one map a page, one set-access.
  static result<staging_mapping> create(const device &d, std::span<const page_ptr> pages);
  // Reserves addresses for pages that add() maps later.
  // Errors: as reservation::create.
  // Cost:   one reserve.
  static result<staging_mapping> reserve(const device &d, std::size_t bytes);
  // Maps more pages behind those already mapped.
  // Requires: they fit into the reservation.
  // Ensures:  failure: nothing changed.
  // Errors:   as address_space::apply.
  // Cost:     one map a page, one set-access.
  status add(std::span<const page_ptr> pages);
  staging_mapping(staging_mapping &&o) noexcept
      : device_(o.device_),
        addresses_(std::move(o.addresses_)),
        at_(std::move(o.at_)),
        mapped_(std::exchange(o.mapped_, 0)) {}
  staging_mapping &operator=(staging_mapping &&o) noexcept;
  // Requires: no device work uses the addresses.
  ~staging_mapping() { clear(); }

  // The address of each page.
  const std::vector<device_address> &at() const { return at_; }

 private:
  staging_mapping(const device &d, reservation addresses)
      : device_(d), addresses_(std::move(addresses)) {}
  void clear() noexcept;
  device device_;
  reservation addresses_;
  std::vector<device_address> at_;
  std::size_t mapped_ = 0;  // bytes, from the start
};

}  // namespace stillmap::checkpoint
