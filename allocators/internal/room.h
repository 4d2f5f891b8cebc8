// Room in a vector before it is needed. Internal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stillmap {

// Afterwards `n` elements can be added without host memory. Grows as push_back does.
template <class T>
void make_room(std::vector<T> &v, std::size_t n = 1) {
  if (v.capacity() - v.size() < n) v.reserve(std::max(v.size() + n, 2 * v.capacity()));
}

}  // namespace stillmap
