// Set of ranges of bytes or addresses. Adjacent ranges are merged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace hostcuda {

class offset_ranges {
 public:
  struct range {
    std::size_t offset, bytes;
  };

  std::size_t bytes() const { return bytes_; }

  // Adds a range and returns the merged range.
  // Requires: no byte of it is in the set.
  range add(std::size_t offset, std::size_t bytes) {
    bytes_ += bytes;
    auto at = by_offset_.emplace(offset, bytes).first;
    if (const auto next = std::next(at);
        next != by_offset_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      by_offset_.erase(next);
    }
    if (at != by_offset_.begin()) {
      if (const auto before = std::prev(at); before->first + before->second == at->first) {
        before->second += at->second;
        by_offset_.erase(at);
        at = before;
      }
    }
    return {at->first, at->second};
  }

  // Returns the offset of the lowest range of at least `bytes`. Examines at most 64 ranges.
  std::optional<std::size_t> lowest(std::size_t bytes) const {
    int tries = 64;
    auto it = by_offset_.begin();
    while (it != by_offset_.end() && it->second < bytes && --tries > 0) ++it;
    if (it == by_offset_.end() || it->second < bytes) return std::nullopt;
    return it->first;
  }

  // Returns the highest multiple of `alignment`, a power of two, at which there are `bytes`. Examines at
  // most 64 ranges.
  std::optional<std::size_t> highest(std::size_t bytes, std::size_t alignment) const {
    int tries = 64;
    for (auto it = by_offset_.end(); it != by_offset_.begin() && tries-- > 0;) {
      --it;
      if (bytes > it->second) continue;
      const std::size_t at = (it->first + it->second - bytes) & ~(alignment - 1);
      if (at >= it->first) return at;
    }
    return std::nullopt;
  }

  // Whether one range has all of them.
  bool contains(std::size_t offset, std::size_t bytes) const {
    auto after = by_offset_.upper_bound(offset);
    if (after == by_offset_.begin()) return false;
    --after;
    return offset - after->first < after->second &&
           bytes <= after->second - (offset - after->first);
  }

  // Removes `bytes` at `offset`.
  // Requires: contains(offset, bytes).
  void take(std::size_t offset, std::size_t bytes) {
    const auto it = std::prev(by_offset_.upper_bound(offset));
    const std::size_t begin = it->first, end = begin + it->second;
    by_offset_.erase(it);
    if (offset != begin) by_offset_.emplace(begin, offset - begin);
    if (offset + bytes != end) by_offset_.emplace(offset + bytes, end - offset - bytes);
    bytes_ -= bytes;
  }

  // Removes and returns up to `most` bytes from the first range.
  std::optional<range> take_first(std::size_t most) {
    if (by_offset_.empty()) return std::nullopt;
    const range out{by_offset_.begin()->first, std::min(most, by_offset_.begin()->second)};
    take(out.offset, out.bytes);
    return out;
  }

  void clear() {
    by_offset_.clear();
    bytes_ = 0;
  }

 private:
  std::map<std::size_t, std::size_t> by_offset_;
  std::size_t bytes_ = 0;
};

}  // namespace hostcuda
