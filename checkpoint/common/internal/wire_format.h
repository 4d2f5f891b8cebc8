// Numbers and texts as the bytes of a message, little-endian: written, and read without trust.
// Internal to those who send messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stillmap::checkpoint {

class field_writer {
 public:
  void number(std::uint64_t n, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<std::byte>(n >> (8 * i)));
  }
  void u32(std::uint64_t n) { number(n, 4); }
  void u64(std::uint64_t n) { number(n, 8); }
  void text(std::string_view s) {
    u32(s.size());
    for (const char c : s) out_.push_back(static_cast<std::byte>(c));
  }
  void bytes(std::span<const std::byte> b) { out_.insert(out_.end(), b.begin(), b.end()); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Past the end everything is 0 and nothing is good any more.
class field_reader {
 public:
  static constexpr std::size_t longest_text = 4096;

  explicit field_reader(std::span<const std::byte> from) : left_(from) {}
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
  // A number of things that take at least `each` bytes: no more than can follow.
  std::size_t count(std::size_t each) {
    const std::size_t n = u32();
    if (n > left_.size() / each) good_ = false;
    return good_ ? n : 0;
  }
  // A value of an enumeration, of those from `first` to `last`.
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
  void spoil() { good_ = false; }  // what was read makes no sense
  bool good() const { return good_; }
  bool done() const { return good_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool good_ = true;
};

}  // namespace stillmap::checkpoint
