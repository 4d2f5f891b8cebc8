// Which device memory the driver serves the program, by the handles and addresses that hold it: counted from its
// creation until the last of them is gone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "preload/functions/abi.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::preload {

// What holds memory. Physical memory of cuMemCreate lives while a handle or a mapping of it does.
enum class held_by : std::uint8_t { address, array, mipmapped_array, handle, mapping };

class served_memory {
 public:
  class lease;  // bytes of a device, until the last reference to it goes
  using lease_ptr = std::shared_ptr<lease>;
  struct holder {
    lease_ptr bytes;
    word context = 0;  // with which it ends; 0: with none
    word range = 0;    // bytes of addresses, of a mapping
  };
  using holders = std::multimap<std::pair<held_by, word>, holder>;

  // Whether anything is counted. Else none of the functions below takes a lock.
  static bool any() noexcept;
  // Nothing that the parent has counted belongs to a forked child.
  static void leave_in_child() noexcept;

  // Reserves. nullptr: the device is not known, and nothing is counted.
  static result<lease_ptr> reserve(int ordinal, word bytes) noexcept;

  // What the driver has created, or mapped. Without host memory for it, it is not counted.
  static void add(held_by kind, word key, holder h) noexcept;
  // For a mapping, or a further handle, of memory that is counted already. nullptr: it is not.
  static lease_ptr of_handle(word handle) noexcept;
  static lease_ptr mapped_at(word address) noexcept;

  // Takes out what a call is about to free, so that another thread that gets the same handle or address finds no
  // old entry. It counts until the result is destroyed; put_back() where the call fails.
  static holders take_out(held_by kind, word key) noexcept;
  static holders take_out_mappings(word at, word range) noexcept;
  static holders take_out_context(word context) noexcept;
  static void put_back(holders &&taken) noexcept;
};

}  // namespace stillmap::preload
