// Runs one function on several threads, the calling thread included.
#pragma once

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/start_thread.h"

namespace stillmap::checkpoint {

// `requested` threads (0: the number of processors, at most 8), but no more than there are pieces.
inline unsigned threads_for(unsigned requested, std::size_t pieces) {
  const unsigned n =
      requested != 0 ? requested : std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  return static_cast<unsigned>(std::clamp<std::size_t>(pieces, 1, n));
}

// Runs `work` on `threads` threads, or on fewer if the system cannot create them or the host has no
// memory for them. Errors that they make name the operation of the caller.
// Requires: `work` is noexcept: an exception of a thread would end the process.
template <class Work>
void parallel_for(unsigned threads, const Work &work) {
  static_assert(std::is_nothrow_invocable_v<const Work &>);
  std::vector<std::thread> others;
  try {
    others.reserve(threads - 1);
    const auto help = [&work, operation = operation_scope::current()]() noexcept {
      const operation_scope scope(operation);
      work();
    };
    for (unsigned i = 1; i < threads; ++i) others.push_back(start_thread<std::thread>(help));
  } catch (const std::system_error &) {
  } catch (const std::bad_alloc &) {
  }
  work();
  for (std::thread &t : others) t.join();
}

}  // namespace stillmap::checkpoint
