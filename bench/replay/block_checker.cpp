#include "bench/replay/block_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/replay/internal/failure.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::replay {
namespace {

constexpr std::size_t arena_bytes = std::size_t{32} << 20;
constexpr std::size_t piece_bytes = std::size_t{1} << 20;  // of a block that is checked whole
constexpr std::uint64_t around = 32;  // bytes on either side of a page boundary

// The word at `offset` of the block with this number. The words at multiples of 8 of one block
// differ from each other; those of two blocks differ almost surely. The next word is one addition
// away, because a checked replay spends its time here.
constexpr std::uint64_t to_next_word = 0x9e3779b97f4a7c15u;
std::uint64_t word_at(std::uint64_t serial, std::uint64_t offset) {
  std::uint64_t x = serial * 0xd1342543de82ef95u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) + offset / 8 * to_next_word;
}

// What a part of a block holds: it is written and compared as the same part, wherever that begins.
void fill(unsigned char *to, std::uint64_t serial, std::uint64_t offset, std::size_t length) {
  std::size_t i = 0;
  std::uint64_t word = word_at(serial, offset);
  for (; length - i >= 8; i += 8, word += to_next_word) std::memcpy(to + i, &word, 8);
  std::memcpy(to + i, &word, length - i);
}

}  // namespace

result<std::unique_ptr<block_checker>> block_checker::create(const device &d,
                                                             std::span<const stream_ref> streams,
                                                             std::uint32_t slots,
                                                             check_depth depth) {
  STILLMAP_ASSIGN_OR_RETURN(void *const arena, d.driver().allocate_host(arena_bytes));
  return std::unique_ptr<block_checker>(new block_checker(d, streams, slots, depth, arena));
}

block_checker::~block_checker() {
  // Copies that are still queued read from it or write to it.
  for (const stream_ref s : streams_)
    report_if_failed(device_.driver().synchronize_stream(s.get()));
  report_if_failed(device_.driver().free_host(arena_));
}

// Calls body(offset, length) for each part of a block that is written and read, in order.
template <class Body>
status block_checker::each_part(const block &b, Body &&body) {
  if (depth_ == check_depth::bytes || b.bytes <= 4 * around) {
    for (std::uint64_t at = 0; at < b.bytes; at += piece_bytes) {
      STILLMAP_RETURN_IF_ERROR(body(at, std::min<std::uint64_t>(piece_bytes, b.bytes - at)));
    }
    return {};
  }
  const std::uint64_t page = device_.capabilities().page_bytes;
  std::uint64_t done_to = 0;  // parts do not overlap
  const auto part = [&](std::uint64_t from, std::uint64_t to) -> status {
    from = std::max(from, done_to);
    to = std::min(to, b.bytes);
    if (from >= to) return {};
    done_to = to;
    return body(from, to - from);
  };
  STILLMAP_RETURN_IF_ERROR(part(0, 2 * around));
  for (std::uint64_t edge = page - b.at % page; edge < b.bytes; edge += page) {
    STILLMAP_RETURN_IF_ERROR(part(edge > around ? edge - around : 0, edge + around));
  }
  return part(b.bytes - 2 * around, b.bytes);
}

// Returns an offset in the arena. When the arena is full, waits for all queued copies and compares.
result<std::size_t> block_checker::room(std::size_t bytes) {
  if (used_ + bytes > arena_bytes) STILLMAP_RETURN_IF_ERROR(finish());
  const std::size_t at = used_;
  used_ += round_up(bytes, 8);
  return at;
}

status block_checker::allocated(std::uint32_t slot, void *at, std::uint64_t bytes,
                                std::uint32_t stream) {
  block &b = blocks_[slot];
  b.at = reinterpret_cast<std::uintptr_t>(at);
  b.bytes = bytes;
  b.serial = ++serial_;
  b.stream = stream;
  b.uses.clear();
  return each_part(b, [&](std::uint64_t offset, std::size_t length) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t where, room(length));
    fill(arena_ + where, b.serial, offset, length);
    return device_.driver().copy_to_device_async(device_address(b.at + offset), arena_ + where,
                                                 length, streams_[stream].get());
  });
}

status block_checker::read(const block &b, std::uint32_t stream) {
  return each_part(b, [&](std::uint64_t offset, std::size_t length) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t where, room(length));
    STILLMAP_RETURN_IF_ERROR(device_.driver().copy_to_host_async(
        arena_ + where, device_address(b.at + offset), length, streams_[stream].get()));
    pending_.push_back({b.serial, b.bytes, offset, where, length, stream});
    return {};
  });
}

status block_checker::used(std::uint32_t slot, std::uint32_t stream) {
  block &b = blocks_[slot];
  if (stream == b.stream) return {};
  if (std::find(b.uses.begin(), b.uses.end(), stream) == b.uses.end()) b.uses.push_back(stream);
  return {};
}

// The other streams read first, because their work is what an allocator may forget.
status block_checker::before_free(std::uint32_t slot) {
  const block &b = blocks_[slot];
  for (const std::uint32_t stream : b.uses) STILLMAP_RETURN_IF_ERROR(read(b, stream));
  return read(b, b.stream);
}

status block_checker::finish() {
  for (const stream_ref s : streams_) {
    STILLMAP_RETURN_IF_ERROR(device_.driver().synchronize_stream(s.get()));
  }
  std::vector<unsigned char> expected(depth_ == check_depth::bytes ? piece_bytes : 4 * around);
  for (const read_back &r : pending_) {
    fill(expected.data(), r.serial, r.offset, r.length);
    const unsigned char *const found = arena_ + r.in_arena;
    if (std::memcmp(expected.data(), found, r.length) == 0) {
      bytes_checked_ += r.length;
      continue;
    }
    const auto [want, got] = std::mismatch(
        expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(r.length), found);
    return fail(errc::corrupt,
                fmt::format("a wrong byte: allocation {} ({} bytes) holds {:#04x} instead of "
                            "{:#04x} at offset {}, as stream {} read it before the free",
                            r.serial, r.bytes_of_block, *got, *want,
                            r.offset + static_cast<std::uint64_t>(got - found), r.stream));
  }
  pending_.clear();
  used_ = 0;
  return {};
}

}  // namespace stillmap::replay
