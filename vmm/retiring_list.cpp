#include "stillmap/vmm/retiring_list.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stillmap {

void retiring_list::add(retiring_range r) {
  const std::uint64_t begin = r.range.begin.value();
  ranges_.push_back(std::move(r));
  by_address_[begin] = {std::prev(ranges_.end()), next_++};
}

// The first that may overlap `range`: the one that begins at or before it, or else the next.
retiring_list::index::iterator retiring_list::first_over(virtual_range range) {
  auto it = by_address_.upper_bound(range.begin.value());
  if (it != by_address_.begin() && std::prev(it)->second.where->range.overlaps(range)) --it;
  return it;
}

const retiring_range *retiring_list::at(device_address at) const {
  auto it = by_address_.upper_bound(at.value());
  if (it == by_address_.begin()) return nullptr;
  const retiring_range &r = *std::prev(it)->second.where;
  return r.range.contains(at) ? &r : nullptr;
}

std::vector<retiring_range> retiring_list::take(virtual_range range) {
  std::vector<known> found;
  auto it = first_over(range);
  while (it != by_address_.end() && it->second.where->range.overlaps(range)) {
    found.push_back(it->second);
    it = by_address_.erase(it);
  }
  std::sort(found.begin(), found.end(),
            [](const known &a, const known &b) { return a.order < b.order; });
  std::vector<retiring_range> out;
  for (const known &k : found) {
    out.push_back(std::move(*k.where));
    ranges_.erase(k.where);
  }
  return out;
}

std::vector<retiring_range> retiring_list::take_all() {
  std::vector<retiring_range> out(std::make_move_iterator(ranges_.begin()),
                                  std::make_move_iterator(ranges_.end()));
  ranges_.clear();
  by_address_.clear();
  return out;
}

void retiring_list::cut(virtual_range gone) {
  auto it = first_over(gone);
  while (it != by_address_.end() && it->second.where->range.overlaps(gone)) {
    const known k = it->second;
    retiring_range &r = *k.where;
    const virtual_range whole = r.range;
    it = by_address_.erase(it);
    // Both pieces stand where the whole stood.
    if (gone.end() < whole.end()) {
      const virtual_range right{gone.end(), whole.end() - gone.end()};
      const auto after = ranges_.insert(std::next(k.where), {r.block, right, r.idle});
      by_address_[right.begin.value()] = {after, k.order};
    }
    if (whole.begin < gone.begin) {
      r.range.bytes = gone.begin - whole.begin;
      by_address_[whole.begin.value()] = k;
    } else {
      ranges_.erase(k.where);
    }
  }
}

}  // namespace stillmap
