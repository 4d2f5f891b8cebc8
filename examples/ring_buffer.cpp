// A ring buffer that maps its pages twice in a row, so that a record that crosses its end is still
// contiguous. Kernels need no wrap-around arithmetic.
#include <cstdint>
#include <numeric>

#include "examples/example.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;

int main() {
  const device d = example::open_mapping_device("a ring");
  growable_buffer store = example::must(growable_buffer::create(d, {.reserve_bytes = 8u << 20}));
  const std::size_t bytes = 2 * store.page_bytes();
  example::must(store.resize(bytes));
  growable_buffer ring = example::must(store.alias(0, bytes, 2));

  // A stream of records of a size that does not divide the ring's.
  constexpr std::size_t record = 300'000;
  std::vector<std::uint32_t> written(record), last;
  std::size_t head = 0, crossings = 0;
  for (std::uint32_t n = 0; n < 20; ++n) {
    std::iota(written.begin(), written.end(), n * 1'000'000);
    const std::size_t length = written.size() * sizeof(std::uint32_t);
    example::write(d, ring.address() + head, written.data(), length);
    if (head + length > bytes) {
      ++crossings;
      // One read across the end of the ring; the tail is also at its start.
      example::check(example::read<std::uint32_t>(d, ring.address() + head, record) == written,
                     "a record that crosses the end is contiguous");
      const std::size_t tail = (head + length - bytes) / sizeof(std::uint32_t);
      const auto wrapped = example::read<std::uint32_t>(d, ring.address(), tail);
      example::check(std::equal(wrapped.begin(), wrapped.end(),
                                written.end() - static_cast<std::ptrdiff_t>(tail)),
                     "and its tail is at the start of the ring");
    }
    head = (head + length) % bytes;
  }
  example::check(crossings != 0, "some records crossed the end");
  example::check(d.space().stats().physical.bytes() == bytes, "the second mapping took no memory");
  return 0;
}
