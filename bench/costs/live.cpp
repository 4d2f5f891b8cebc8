// Calls against the number of mappings that there are already.
#include "bench/costs/life.h"
#include "bench/costs/many_mappings.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {

void measure_live(const machine &m, time_left left, bool quick, table &out) {
  const auto made = m.driver().create_stream(true);
  if (!made) return out.refused(made.error(), against::live, 0);
  const own_stream stream(m.driver(), *made);
  const life *const lives[] = {&mapped_life, &plain_life, &ordered_life};
  many_mappings others(m);
  std::vector<std::size_t> counts{0, 1000, 10000};
  if (!quick) counts.push_back(100000);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const time_left now = left.share(1.0 / static_cast<double>(counts.size() - i));
    // Making them is no sample, and taking them away again wants time too.
    others.grow(counts[i], now.share(0.4));
    const auto there = static_cast<double>(others.count());
    if (others.refusal()) return out.refused(*others.refusal(), against::live, there + 1);
    for (const life *const one : lives) {
      const time_left sampling = now.share(0.3);
      call_times times, first;
      status done = one->once(m, stream.get(), m.page(), first);
      for (std::size_t n = 0; done && sampling.more(n); ++n) {
        done = one->once(m, stream.get(), m.page(), times);
      }
      out.add(times, against::live, there);
      if (!done) out.refused(done.error(), against::live, there);
    }
    if (others.count() < counts[i]) return;  // no time for so many, nor for more
  }
}

}  // namespace stillmap::costs
