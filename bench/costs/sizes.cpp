// Each call against the size of the memory.
#include <algorithm>

#include "bench/costs/life.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {
namespace {

using namespace stillmap::literals;

// Every size until one is refused.
void against_size(const machine &m, stream_handle stream, time_left left, std::size_t largest,
                  life &one, table &out) {
  std::vector<std::size_t> sizes;
  for (std::size_t n = 2_MiB; n < 1_GiB; n *= 4) sizes.push_back(n);
  sizes.push_back(1_GiB);
  std::erase_if(sizes, [&](std::size_t n) { return n > largest; });
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const time_left now = left.share(1.0 / static_cast<double>(sizes.size() - i));
    const std::size_t bytes = round_up(sizes[i], m.page());
    call_times times;
    const auto once = [&](call_times &into) { return one(m, stream, bytes, into); };
    if (!sample(now, times, against::size, static_cast<double>(bytes), out, once)) return;
  }
}

}  // namespace

void measure_sizes(const machine &m, time_left left, bool quick, table &out) {
  const std::size_t most = std::min(m.allowance(), quick ? 32_MiB : 1_GiB);
  const auto stream = m.create_stream();
  if (!stream) return out.refused(stream.error(), against::size, 0);
  if (m.vmm()) {
    against_size(m, stream->get(), left.share(0.3), most, mapped_life, out);
    against_size(m, stream->get(), left.share(0.3), most, shared_life, out);
  }
  against_size(m, stream->get(), left.share(0.3), most, plain_life, out);
  against_size(m, stream->get(), left.share(0.5), most, ordered_life, out);
  // Pinning is slow, and only the order of its cost is wanted.
  against_size(m, stream->get(), left.at_most(30),
               std::min(machine::pinned_allowance(), quick ? 8_MiB : 1_GiB), pinned_life, out);
}

}  // namespace stillmap::costs
