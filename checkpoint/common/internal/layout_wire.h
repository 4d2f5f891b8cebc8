// A layout of memory as bytes for another process, and an error as what the other side can act on.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"

namespace stillmap::checkpoint {

// A bound on what is believed before memory is taken for it.
inline constexpr std::size_t largest_layout = std::size_t{256} << 20;

std::vector<std::byte> encode(const memory_layout &l);
std::vector<std::byte> encode(const error &e);  // its condition and value

// Errors: corrupt. A layout's numbers are not compared with each other: check() does.
result<memory_layout> decode_layout(std::span<const std::byte> from);
// What the other side said, as an error of `op`, whose reason is this one.
inline constexpr const char *refused_there = "the other side refuses";
error decode_refusal(std::span<const std::byte> from, const char *op);

}  // namespace stillmap::checkpoint
