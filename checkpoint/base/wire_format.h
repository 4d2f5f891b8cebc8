// Fields of messages as bytes: little-endian numbers, texts and lists. A message lists its fields
// once, in a template that a wire_writer and a wire_reader run. The reader trusts nothing.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/units.h"

namespace stillmap::checkpoint {

template <class T>
concept wire_number = std::integral<T> && !std::same_as<T, bool>;

// An enumerator from `first` to `last`, or an optional one.
template <class T, class Enum>
struct bounded_enum {
  T &value;
  Enum last, first;
};
template <class T, class Enum>
bounded_enum<T, Enum> up_to(T &value, Enum last, Enum first = Enum{}) {
  return {value, last, first};
}

class wire_writer {
 public:
  static constexpr bool reads = false;

  // Longer texts are cut off.
  explicit wire_writer(std::size_t longest_text = SIZE_MAX) : longest_text_(longest_text) {}

  // Writes fields, in this order: integers at their size, flags and enumerators as 32 bits, arrays
  // without a length.
  template <class... Fields>
  void operator()(const Fields &...fields) {
    (put(fields), ...);
  }
  // Writes the length of a list, which elements() need not follow at once.
  template <class T>
  std::size_t count(const std::vector<T> &list, std::size_t) {
    put(static_cast<std::uint32_t>(list.size()));
    return list.size();
  }
  // Calls each(element), which writes its fields.
  template <class T, class Each>
  void elements(const std::vector<T> &list, std::size_t, const Each &each) {
    for (const T &element : list) each(element);
  }
  // What a reader requires of the fields.
  void check(bool) {}
  void bytes(std::span<const std::byte> b) { out_.insert(out_.end(), b.begin(), b.end()); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  template <wire_number T>
  void put(T n) {
    for (std::size_t i = 0; i < sizeof n; ++i) {
      out_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(n) >> (8 * i)));
    }
  }
  void put(std::same_as<bool> auto flag) { put(std::uint32_t{flag}); }
  template <class T, class Enum>
  void put(const bounded_enum<T, Enum> &e) {
    if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::uint32_t>(e.value));
    } else {
      put(e.value ? static_cast<std::uint32_t>(*e.value) : UINT32_MAX);
    }
  }
  void put(const std::string &text) {
    const auto shown = std::as_bytes(std::span(text)).first(std::min(text.size(), longest_text_));
    put(static_cast<std::uint32_t>(shown.size()));
    bytes(shown);
  }
  template <class Byte, std::size_t N>
  void put(const std::array<Byte, N> &array) {
    bytes(std::as_bytes(std::span(array)));
  }
  void put(device_address a) { put(a.value()); }
  void put(std::chrono::milliseconds t) { put(static_cast<std::uint32_t>(t.count())); }
  // Durations and rates are sent as integers, so that no NaN arrives.
  void put(std::chrono::duration<double> t) {
    put(t.count() > 0 ? static_cast<std::uint64_t>(std::min(t.count(), 1e9) * 1e9) : 0);
  }
  void put(double rate) { put(rate > 0 ? static_cast<std::uint64_t>(std::min(rate, 1e18)) : 0); }

  std::vector<std::byte> out_;
  const std::size_t longest_text_;
};

class wire_reader {
 public:
  static constexpr bool reads = true;
  static constexpr std::size_t longest_text = 4096;

  explicit wire_reader(std::span<const std::byte> from) : left_(from) {}

  // Reads fields, in this order. After a failure their values have no meaning.
  template <class... Fields>
  void operator()(Fields &&...fields) {
    (get(fields), ...);
  }
  // The length of a list of elements of at least `element_bytes`; not more than can follow.
  template <class T>
  std::size_t count(const std::vector<T> &, std::size_t element_bytes) {
    const std::size_t n = read<std::uint32_t>();
    check(n <= left_.size() / element_bytes);
    return good_ ? n : 0;
  }
  // Appends elements and calls each(element), which reads its fields.
  template <class T, class Each>
  void elements(std::vector<T> &list, std::size_t n, const Each &each) {
    for (std::size_t i = 0; i < n && good_; ++i) each(list.emplace_back());
  }
  template <wire_number T>
  T read() {
    T n{};
    get(n);
    return n;
  }
  void bytes(std::span<std::byte> into) {
    check(into.size() <= left_.size());
    if (!good_) return;
    std::copy_n(left_.begin(), into.size(), into.begin());
    left_ = left_.subspan(into.size());
  }
  // Fails unless this is so.
  void check(bool valid) { good_ = good_ && valid; }
  bool good() const { return good_; }
  // Whether everything was read, without an error.
  bool done() const { return good_ && left_.empty(); }

 private:
  template <wire_number T>
  void get(T &n) {
    check(left_.size() >= sizeof n);
    std::uint64_t value = 0;
    for (std::size_t i = 0; good_ && i < sizeof n; ++i) {
      value |= std::to_integer<std::uint64_t>(left_[i]) << (8 * i);
    }
    n = static_cast<T>(value);
    left_ = left_.subspan(good_ ? sizeof n : left_.size());
  }
  void get(std::same_as<bool> auto &flag) {
    const auto n = read<std::uint32_t>();
    check(n <= 1);
    flag = n == 1;
  }
  template <class T, class Enum>
  void get(const bounded_enum<T, Enum> &e) {
    const auto n = read<std::uint32_t>();
    if (!std::is_enum_v<T> && n == UINT32_MAX) return;
    check(n >= static_cast<std::uint32_t>(e.first) && n <= static_cast<std::uint32_t>(e.last));
    if (good_) e.value = static_cast<Enum>(n);
  }
  void get(std::string &text) {
    const auto n = read<std::uint32_t>();
    check(n <= longest_text && n <= left_.size());
    text.resize(good_ ? n : 0);
    bytes(std::as_writable_bytes(std::span(text)));
  }
  template <class Byte, std::size_t N>
  void get(std::array<Byte, N> &array) {
    bytes(std::as_writable_bytes(std::span(array)));
  }
  void get(device_address &a) { a = device_address(read<std::uint64_t>()); }
  void get(std::chrono::milliseconds &t) { t = std::chrono::milliseconds(read<std::uint32_t>()); }
  void get(std::chrono::duration<double> &t) {
    t = std::chrono::duration<double>(static_cast<double>(read<std::uint64_t>()) / 1e9);
  }
  void get(double &rate) { rate = static_cast<double>(read<std::uint64_t>()); }

  std::span<const std::byte> left_;
  bool good_ = true;
};

// The message as a writer or a reader takes it.
template <class Wire, class Message>
using field_of = std::conditional_t<Wire::reads, Message, const Message>;

}  // namespace stillmap::checkpoint
