// A 64-bit digest of a stream, for content that can be read only once: finds accidents, not
// adversaries. The result depends on the bytes alone, not on how they were cut into pieces.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace stillmap::tool {

class stream_digest {
 public:
  void add(std::span<const std::byte> bytes) {
    total_ += bytes.size();
    while (!bytes.empty()) {
      if (held_ == 0 && bytes.size() >= block) {
        mix(bytes.data());
        bytes = bytes.subspan(block);
        continue;
      }
      const std::size_t n = bytes.size() < block - held_ ? bytes.size() : block - held_;
      std::memcpy(rest_.data() + held_, bytes.data(), n);
      held_ += n;
      bytes = bytes.subspan(n);
      if (held_ == block) {
        mix(rest_.data());
        held_ = 0;
      }
    }
  }

  std::uint64_t value() const {
    stream_digest last = *this;
    if (held_ != 0) {
      std::memset(last.rest_.data() + held_, 0, block - held_);
      last.mix(last.rest_.data());
    }
    std::uint64_t out = total_ * multiplier;
    for (const std::uint64_t lane : last.lanes_) out = finish(out ^ lane) + lane;
    return finish(out);
  }

 private:
  static constexpr std::size_t block = 64;
  static constexpr std::uint64_t multiplier = 0x9e3779b97f4a7c15;

  // Each lane is multiplied at every step, so that the order of blocks counts; a step is a
  // bijection of the lane for a given word and of the word for a given lane, so no single change is
  // lost.
  void mix(const std::byte *from) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      std::uint64_t word;
      std::memcpy(&word, from + i * sizeof(word), sizeof(word));
      lanes_[i] = std::rotl((lanes_[i] ^ word) * multiplier, 29);
    }
  }
  static std::uint64_t finish(std::uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93;
    x ^= x >> 32;
    return x;
  }

  std::array<std::uint64_t, 8> lanes_ = {1, 2, 3, 4, 5, 6, 7, 8};
  std::array<std::byte, block> rest_{};
  std::size_t held_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace stillmap::tool
