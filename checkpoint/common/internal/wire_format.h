// Encodes and decodes the numbers and strings of messages: fixed-size, little-endian. The reader
// trusts nothing that it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stillmap::checkpoint {

class wire_writer {
 public:
  void number(std::uint64_t n, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<std::byte>(n >> (8 * i)));
  }
  void u32(std::uint64_t n) { number(n, 4); }
  void u64(std::uint64_t n) { number(n, 8); }
  // Length-prefixed.
  void text(std::string_view s) {
    u32(s.size());
    for (const char c : s) out_.push_back(static_cast<std::byte>(c));
  }
  void bytes(std::span<const std::byte> b) { out_.insert(out_.end(), b.begin(), b.end()); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// After the first error every read returns zeros, and good() is false.
class wire_reader {
 public:
  static constexpr std::size_t longest_text = 4096;

  explicit wire_reader(std::span<const std::byte> from) : left_(from) {}
  std::uint64_t number(std::size_t bytes) {
    if (bytes > left_.size()) {
      good_ = false;
      left_ = {};
      return 0;
    }
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      n |= std::to_integer<std::uint64_t>(left_[i]) << (8 * i);
    left_ = left_.subspan(bytes);
    return n;
  }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  // 0 or 1.
  bool flag() {
    const std::uint32_t n = u32();
    if (n > 1) good_ = false;
    return good_ && n == 1;
  }
  // The number of elements of at least `element_bytes` that follow; not more than can follow.
  std::size_t count(std::size_t element_bytes) {
    const std::size_t n = u32();
    if (n > left_.size() / element_bytes) good_ = false;
    return good_ ? n : 0;
  }
  // An enumerator from `first` to `last`.
  template <class Enum>
  Enum one_of(Enum last, Enum first = Enum{}) {
    const std::uint32_t n = u32();
    if (n > static_cast<std::uint32_t>(last) || n < static_cast<std::uint32_t>(first)) {
      good_ = false;
    }
    return good_ ? static_cast<Enum>(n) : first;
  }
  std::string text() {
    const std::size_t n = count(1);
    if (n > longest_text) good_ = false;
    if (!good_) return {};
    std::string s(n, '\0');
    for (char &c : s) c = static_cast<char>(number(1));
    return s;
  }
  void bytes(std::span<std::byte> into) {
    for (std::byte &b : into) b = static_cast<std::byte>(number(1));
  }
  // Marks what was read as invalid.
  void fail() { good_ = false; }
  bool good() const { return good_; }
  // Whether everything was read, without an error.
  bool done() const { return good_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool good_ = true;
};

}  // namespace stillmap::checkpoint
