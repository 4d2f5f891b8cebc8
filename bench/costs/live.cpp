// Calls against the number of existing mappings.
#include "bench/costs/life.h"
#include "bench/costs/many_mappings.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {

void measure_live(const machine &m, time_left left, bool quick, table &out) {
  const auto stream = m.create_stream();
  if (!stream) return out.refused(stream.error(), against::live, 0);
  many_mappings others(m);
  std::vector<std::size_t> counts{0, 1000, 10000};
  if (!quick) counts.push_back(100000);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const time_left now = left.share(1.0 / static_cast<double>(counts.size() - i));
    // Leaves time for the samples and for removing the mappings.
    others.grow(counts[i], now.share(0.4));
    const auto there = static_cast<double>(others.count());
    if (others.refusal()) return out.refused(*others.refusal(), against::live, there + 1);
    for (life *const one : {mapped_life, plain_life, ordered_life}) {
      call_times times;
      (void)sample(now.share(0.3), times, against::live, there, out,
                   [&](call_times &into) { return one(m, stream->get(), m.page(), into); });
    }
    if (others.count() < counts[i]) return;  // no time for so many
  }
}

}  // namespace stillmap::costs
