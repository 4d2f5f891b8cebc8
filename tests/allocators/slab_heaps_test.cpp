// The choice among slabs with free blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "stillmap/allocators/engine/slab.h"

namespace stillmap {
namespace {

// Beside a sorted list.
TEST(slab_heaps, the_lowest_address_is_first_whatever_happened_before) {
  constexpr std::size_t n = 200, bytes = 1024;
  std::vector<extent> memory(n);
  std::vector<slab> slabs(n);
  slab_heaps heaps;
  std::vector<slab *> in, out;
  for (std::size_t i = 0; i < n; ++i) {
    memory[i].begin = (i + 1) * 65536;
    slabs[i].memory = &memory[i];
    slabs[i].block_bytes = bytes;
    heaps.expect(bytes);
    out.push_back(&slabs[i]);
  }
  std::mt19937 random(7);
  for (int step = 0; step < 20000; ++step) {
    if (in.empty() || (!out.empty() && random() % 2 == 0)) {
      std::swap(out[random() % out.size()], out.back());
      heaps.link(out.back());
      in.push_back(out.back());
      out.pop_back();
    } else {
      std::swap(in[random() % in.size()], in.back());
      heaps.unlink(in.back());
      out.push_back(in.back());
      in.pop_back();
    }
    const auto lowest = std::min_element(in.begin(), in.end(), [](const slab *a, const slab *b) {
      return a->memory->begin < b->memory->begin;
    });
    ASSERT_EQ(heaps.first(bytes), in.empty() ? nullptr : *lowest) << "step " << step;
    ASSERT_EQ(heaps.first(bytes + 512), nullptr);
  }
}

}  // namespace
}  // namespace stillmap
