#include "stillmap/allocators/report/internal/pickle_writer.h"

#include <algorithm>
#include <bit>

namespace stillmap {
namespace {

constexpr unsigned longest_batch = 500;

enum opcode : char {
  mark = '(',
  empty_dict = '}',
  empty_list = ']',
  set_items = 'u',
  appends = 'e',
  small_int = 'K',
  short_int = 'M',
  int32 = 'J',
  long_int = '\x8a',
  text_utf8 = 'X',
  put_small = 'q',
  put = 'r',
  get_small = 'h',
  get = 'j',
  is_true = '\x88',
  is_false = '\x89',
  tuple_of_two = '\x86',
  stop = '.',
};

}  // namespace

void pickle_writer::number_in(std::uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
}

pickle_writer &pickle_writer::begin_dict() {
  out_ += empty_dict;
  out_ += mark;
  open_.push_back({set_items});
  return *this;
}
pickle_writer &pickle_writer::begin_list() {
  out_ += empty_list;
  out_ += mark;
  open_.push_back({appends});
  return *this;
}
pickle_writer &pickle_writer::end_dict() {
  out_ += open_.back().closes;
  open_.pop_back();
  return *this;
}

pickle_writer &pickle_writer::next() {
  level &l = open_.back();
  if (++l.pending < longest_batch) return *this;
  out_ += l.closes;
  out_ += mark;
  l.pending = 0;
  return *this;
}

pickle_writer &pickle_writer::add(std::string_view text) {
  std::string plain(text);
  // Readers reject text that is not UTF-8.
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return (c & 0x80) != 0; }, '?');
  if (const auto known = texts_.find(plain); known != texts_.end()) return again(known->second);
  out_ += text_utf8;
  number_in(plain.size(), 4);
  out_ += plain;
  texts_.emplace(std::move(plain), remember());
  return *this;
}

pickle_writer &pickle_writer::add(std::uint64_t number) {
  if (number < 0x100) {
    out_ += small_int;
    number_in(number, 1);
  } else if (number < 0x10000) {
    out_ += short_int;
    number_in(number, 2);
  } else if (number < 0x80000000u) {
    out_ += int32;
    number_in(number, 4);
  } else {
    // Two's complement: the highest bit is the sign, so one more bit is needed.
    const auto bytes = static_cast<unsigned>(std::bit_width(number) / 8 + 1);
    out_ += long_int;
    out_ += static_cast<char>(bytes);
    number_in(number, std::min(bytes, 8u));
    if (bytes == 9) out_ += '\0';
  }
  return *this;
}

pickle_writer &pickle_writer::add(bool value) {
  out_ += value ? is_true : is_false;
  return *this;
}

pickle_writer &pickle_writer::add_pair(std::uint64_t first, std::uint64_t second) {
  add(first).add(second);
  out_ += tuple_of_two;
  return *this;
}

std::uint32_t pickle_writer::remember() {
  out_ += remembered_ < 0x100 ? put_small : put;
  number_in(remembered_, remembered_ < 0x100 ? 1 : 4);
  return remembered_++;
}

pickle_writer &pickle_writer::again(std::uint32_t remembered) {
  out_ += remembered < 0x100 ? get_small : get;
  number_in(remembered, remembered < 0x100 ? 1 : 4);
  return *this;
}

std::string pickle_writer::take() {
  out_ += stop;
  return std::move(out_);
}

}  // namespace stillmap
