#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stillmap::bench {

// Of an even count, the mean of the two in the middle; 0 if there is none.
inline double median(std::vector<double> all) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  const std::size_t half = all.size() / 2;
  return all.size() % 2 == 1 ? all[half] : (all[half - 1] + all[half]) / 2;
}

}  // namespace stillmap::bench
