// Calls against the number of mappings that there are already.
#include "bench/costs/life.h"
#include "bench/costs/many_mappings.h"
#include "bench/costs/parts.h"

namespace stillmap::costs {

void measure_live(const machine &m, time_left left, bool quick, table &out) {
  many_mappings others(m);
  std::vector<std::size_t> counts{0, 1000, 10000};
  if (!quick) counts.push_back(100000);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const time_left now = left.share(1.0 / static_cast<double>(counts.size() - i));
    // Making them is no sample, and taking them away again wants time too.
    others.grow(counts[i], now.share(0.4));
    if (others.refusal()) {
      return out.refused(*others.refusal(), against::live, static_cast<double>(others.count() + 1));
    }
    call_times times, first;
    status done = live_once(m, m.page(), first);
    const time_left sampling = now.share(0.6);
    for (std::size_t n = 0; done && sampling.more(n); ++n) done = live_once(m, m.page(), times);
    out.add(times, against::live, static_cast<double>(others.count()));
    if (!done) return out.refused(done.error(), against::live, static_cast<double>(others.count()));
    if (others.count() < counts[i]) return;  // no time for so many, nor for more
  }
}

}  // namespace stillmap::costs
