// Amounts and places, in types that do not mix: an address is virtual, a page is physical, and
// nothing converts one into the other. docs/glossary.md
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "stillmap/vmm/base/version.h"  // stops before C++20

namespace stillmap {

// A device address. Trivial; convertible to what C APIs take by asking for it.
class device_address {
 public:
  constexpr device_address() = default;
  constexpr explicit device_address(std::uint64_t value) : value_(value) {}

  constexpr std::uint64_t value() const { return value_; }  // what CUdeviceptr holds
  void *pointer() const { return reinterpret_cast<void *>(static_cast<std::uintptr_t>(value_)); }
  constexpr explicit operator bool() const { return value_ != 0; }

  constexpr auto operator<=>(const device_address &) const = default;
  friend constexpr device_address operator+(device_address a, std::size_t bytes) {
    return device_address(a.value_ + bytes);
  }
  // Requires: b <= a.
  friend constexpr std::size_t operator-(device_address a, device_address b) {
    return static_cast<std::size_t>(a.value_ - b.value_);
  }

 private:
  std::uint64_t value_ = 0;
};

// Bytes of address space. An empty range contains nothing and overlaps nothing.
struct virtual_range {
  device_address begin;
  std::size_t bytes = 0;

  constexpr device_address end() const { return begin + bytes; }
  constexpr bool empty() const { return bytes == 0; }
  constexpr bool contains(device_address at) const { return begin <= at && at < end(); }
  constexpr bool contains(virtual_range other) const {
    return other.bytes != 0 && begin <= other.begin && other.end() <= end();
  }
  constexpr bool overlaps(virtual_range other) const {
    return bytes != 0 && other.bytes != 0 && begin < other.end() && other.begin < end();
  }
  constexpr bool operator==(const virtual_range &) const = default;
};

// Bytes of physical memory: counts what a device really gives. Never an address, never a length of
// address space.
class physical_size {
 public:
  constexpr physical_size() = default;
  constexpr explicit physical_size(std::uint64_t bytes) : bytes_(bytes) {}
  constexpr std::uint64_t bytes() const { return bytes_; }

  constexpr auto operator<=>(const physical_size &) const = default;
  constexpr physical_size &operator+=(physical_size o) {
    bytes_ += o.bytes_;
    return *this;
  }
  constexpr physical_size &operator-=(physical_size o) {
    bytes_ -= o.bytes_;
    return *this;
  }
  friend constexpr physical_size operator+(physical_size a, physical_size b) { return a += b; }
  friend constexpr physical_size operator-(physical_size a, physical_size b) { return a -= b; }

 private:
  std::uint64_t bytes_ = 0;
};

namespace literals {
constexpr std::size_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
constexpr std::size_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
constexpr std::size_t operator""_GiB(unsigned long long n) {
  return n << 30;
}
constexpr std::size_t operator""_TiB(unsigned long long n) {
  return n << 40;
}
}  // namespace literals

// Multiples of a power-of-two or any other non-zero unit. round_up saturates at the largest
// multiple instead of wrapping, so that a size over the address space stays over it.
constexpr std::size_t round_down(std::size_t n, std::size_t unit) {
  return n - n % unit;
}
constexpr std::size_t round_up(std::size_t n, std::size_t unit) {
  const std::size_t down = round_down(n, unit);
  return down == n ? n : (down > SIZE_MAX - unit ? round_down(SIZE_MAX, unit) : down + unit);
}
constexpr std::size_t divide_up(std::size_t n, std::size_t unit) {
  return n / unit + (n % unit != 0 ? 1 : 0);
}

}  // namespace stillmap
