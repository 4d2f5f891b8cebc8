// Which arena serves a stream.
#include "stillmap/allocators/engine/stream_directory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <unordered_map>

namespace stillmap {
namespace {

stream_ref stream_number(std::uintptr_t n) {
  return stream_ref(reinterpret_cast<stream_handle>(n << 12));
}
// Nothing is there: the directory does not look.
arena *arena_number(std::uintptr_t n) {
  return reinterpret_cast<arena *>(n << 8);
}

// In a table that grows, and that drops removed streams, nothing is lost and nothing comes back.
TEST(stream_directory, finds_what_a_map_finds) {
  stream_directory directory;
  std::unordered_map<std::uintptr_t, std::uintptr_t> expected;
  std::mt19937 random(1);
  for (int step = 0; step < 4000; ++step) {
    const std::uintptr_t s = 1 + random() % (step < 2000 ? 300 : 40);
    if (random() % 3 != 0) {
      const std::uintptr_t a = 1 + random() % 1000;
      directory.expect();
      directory.serve(stream_number(s), arena_number(a));
      expected[s] = a;
    } else {
      directory.serve(stream_number(s), nullptr);
      expected.erase(s);
    }
    if (step % 50 != 0) continue;
    for (std::uintptr_t each = 1; each <= 300; ++each) {
      const auto found = expected.find(each);
      ASSERT_EQ(directory.of(stream_number(each)),
                found == expected.end() ? nullptr : arena_number(found->second))
          << each;
    }
  }
}

}  // namespace
}  // namespace stillmap
