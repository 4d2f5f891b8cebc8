// Copy-on-write: a fork of a large buffer shares its pages, and copies only those that are written.
#include <cstdint>
#include <numeric>

#include "examples/example.h"
#include "stillmap/vmm/growable_buffer.h"

using namespace stillmap;

int main() {
  const device d = example::open_mapping_device("a fork that shares pages");
  growable_buffer weights = example::must(growable_buffer::create(d, {.reserve_bytes = 64u << 20}));
  const std::size_t page = weights.page_bytes(), pages = 16, words = pages * page / 4;
  example::must(weights.resize(pages * page));
  std::vector<std::uint32_t> original(words);
  std::iota(original.begin(), original.end(), 0u);
  example::write(d, weights.address(), original.data(), words * 4);
  const auto memory = [&] { return d.space().stats().physical.bytes(); };
  const std::uint64_t before = memory();

  growable_buffer tuned = example::must(weights.fork());
  example::check(memory() == before, "the fork took no memory");

  // The fine-tuned version changes a few words in the sixth page.
  const std::size_t offset = 5 * page + 1000;
  const stream work = example::must(stream::create(d));
  example::must(tuned.make_writable(offset, 64, work));
  example::write(d, tuned.address() + offset, std::vector<std::uint32_t>(16, 42).data(), 64);
  example::check(memory() == before + page, "writing took one page");
  example::check(tuned.stats().bytes_copied == page, "and copied one page");

  std::vector<std::uint32_t> expected = original;
  std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset / 4), 16, 42u);
  example::check(example::read<std::uint32_t>(d, weights.address(), words) == original,
                 "the original is unchanged");
  example::check(example::read<std::uint32_t>(d, tuned.address(), words) == expected,
                 "the fork has the change, and the rest of the original");
  return 0;
}
