// Each call against the size of the memory.
#include <algorithm>

#include "bench/costs/life.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {
namespace {

using namespace stillmap::literals;

// Every size until one is refused.
void against_size(const machine &m, stream_handle stream, time_left left, std::size_t largest,
                  const life &one, table &out) {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 2_MiB; n < 1_GiB; n *= 4) sizes.push_back(n);
  sizes.push_back(1_GiB);
  std::erase_if(sizes, [&](std::size_t n) { return n > largest; });
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const time_left now = left.share(1.0 / static_cast<double>(sizes.size() - i));
    call_times times, first;  // the first is not counted: what is set up once is no call's cost
    const std::size_t bytes = round_up(sizes[i], m.page());
    status done = one.once(m, stream, bytes, first);
    for (std::size_t n = 0; done && now.more(n); ++n) {
      done = one.once(m, stream, bytes, times);
    }
    out.add(times, against::size, static_cast<double>(bytes));
    if (!done) return out.refused(done.error(), against::size, static_cast<double>(bytes));
  }
}

}  // namespace

void measure_sizes(const machine &m, time_left left, bool quick, table &out) {
  const std::size_t most = std::min(m.allowance(), quick ? 32_MiB : 1_GiB);
  const auto made = m.driver().create_stream(true);
  if (!made) return out.refused(made.error(), against::size, 0);
  const own_stream stream(m.driver(), *made);
  if (m.vmm()) {
    against_size(m, stream.get(), left.share(0.3), most, mapped_life, out);
    against_size(m, stream.get(), left.share(0.3), most, shared_life, out);
  }
  against_size(m, stream.get(), left.share(0.3), most, plain_life, out);
  against_size(m, stream.get(), left.share(0.5), most, ordered_life, out);
  // Pinning is slow, and what is looked for is only its order.
  against_size(m, stream.get(), left.at_most(30),
               std::min(machine::pinned_allowance(), quick ? 8_MiB : 1_GiB), pinned_life, out);
}

}  // namespace stillmap::costs
