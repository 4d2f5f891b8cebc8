// A reserved address range without memory. Buffers reserve their own; use this to map pages by hand.
#pragma once

#include "stillmap/vmm/address_space.h"

namespace stillmap {

struct reservation_options {
  std::size_t alignment = 0;   // 0 or a power of two; 0: the page size
  device_address hint{};       // preferred address
  bool exact_address = false;  // fail when another address is reserved
  std::string tag{};
};

// Owns the range. The addresses are freed when it and every mapping in it are gone.
class reservation {
 public:
  // Errors: as address_space::reserve; busy (exact_address, and the driver chose another address).
  // Cost:   one reserve (and one free when it lands elsewhere).
  static result<reservation> create(const stillmap::device &d, std::size_t bytes,
                                    reservation_options options = {});

  reservation(reservation &&) noexcept = default;
  // Swaps: the old addresses must be freed before the device, of which they may hold the last share.
  reservation &operator=(reservation &&o) noexcept {
    std::swap(device_, o.device_);
    std::swap(block_, o.block_);
    return *this;
  }
  ~reservation() = default;

  // Empty and 0 after a move.
  virtual_range range() const { return block_ ? block_->range() : virtual_range{}; }
  std::uint64_t generation() const { return block_ ? block_->generation() : 0; }
  const stillmap::device &device() const { return device_; }
  const std::shared_ptr<address_block> &block() const { return block_; }

 private:
  reservation(stillmap::device d, std::shared_ptr<address_block> b)
      : device_(std::move(d)), block_(std::move(b)) {}
  stillmap::device device_;
  std::shared_ptr<address_block> block_;  // after device_: destroyed first
};

}  // namespace stillmap
