// Ranges of a file, neighbours joined.
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

  // Requires: none of it is in there. Returns the range that it is part of now.
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

  // Where the lowest that fits begins, looking at a bounded number: ranges are nearly always of one
  // page or many.
  std::optional<std::size_t> lowest(std::size_t bytes) const {
    int tries = 64;
    auto it = by_offset_.begin();
    while (it != by_offset_.end() && it->second < bytes && --tries > 0) ++it;
    if (it == by_offset_.end() || it->second < bytes) return std::nullopt;
    return it->first;
  }

  // Requires: a range begins at `offset`, of at least so many bytes.
  void take(std::size_t offset, std::size_t bytes) {
    const auto it = by_offset_.find(offset);
    const std::size_t left = it->second - bytes;
    by_offset_.erase(it);
    if (left != 0) by_offset_.emplace(offset + bytes, left);
    bytes_ -= bytes;
  }

  // At most `most` bytes from where the first range begins.
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
