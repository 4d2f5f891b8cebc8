// An address range with nothing behind it, by itself. Buffers make their own; this is for those who
// map by hand.
#pragma once

#include "stillmap/vmm/address_space.h"

namespace stillmap {

struct reservation_options {
  std::size_t alignment = 0;   // 0 or a power of two; 0: the page size
  device_address hint{};       // where it would be welcome
  bool exactly_there = false;  // fail rather than be elsewhere
  std::string tag{};
};

// Owner; the addresses are freed when it and everything mapped in it are gone.
class reservation {
 public:
  // Errors: as address_space::reserve; busy (exactly_there, and the driver chose another address).
  // Cost:   one reserve (and one free when it lands elsewhere).
  static result<reservation> create(const stillmap::device &d, std::size_t bytes,
                                    reservation_options options = {});

  reservation(reservation &&) noexcept = default;
  // By swapping: the addresses that were here must go before the device they may be the last to
  // keep.
  reservation &operator=(reservation &&o) noexcept {
    std::swap(device_, o.device_);
    std::swap(block_, o.block_);
    return *this;
  }
  ~reservation() = default;

  // Of a reservation that was moved from: nothing, and 0.
  virtual_range range() const { return block_ ? block_->range() : virtual_range{}; }
  std::uint64_t generation() const { return block_ ? block_->generation() : 0; }
  const stillmap::device &device() const { return device_; }
  const std::shared_ptr<address_block> &block() const { return block_; }

 private:
  reservation(stillmap::device d, std::shared_ptr<address_block> b)
      : device_(std::move(d)), block_(std::move(b)) {}
  stillmap::device device_;
  std::shared_ptr<address_block> block_;  // after device_: goes first
};

}  // namespace stillmap
