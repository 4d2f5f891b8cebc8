// A few threads for one job, the calling one among them.
#pragma once

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace stillmap::image {

inline unsigned threads_for(unsigned asked, std::size_t pieces) {
  const unsigned n = asked != 0 ? asked : std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  return static_cast<unsigned>(std::clamp<std::size_t>(pieces, 1, n));
}

// Runs `work` on that many threads, or on fewer where there are no more to be had.
// Requires: work throws nothing.
template <class Work>
void parallel_for(unsigned threads, const Work &work) {
  std::vector<std::thread> others;
  others.reserve(threads - 1);
  for (unsigned i = 1; i < threads; ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error &) {
      break;
    } catch (const std::bad_alloc &) {
      break;
    }
  }
  work();
  for (std::thread &t : others) t.join();
}

}  // namespace stillmap::image
