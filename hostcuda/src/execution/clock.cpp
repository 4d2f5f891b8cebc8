#include "hostcuda/src/execution/clock.h"

#include <algorithm>
#include <iterator>

#include "hostcuda/src/execution/access_record.h"  // for the destructor of timeline::records

namespace hostcuda {

timeline::timeline(std::uint64_t id) : uid(id) {}
timeline::~timeline() = default;

void vector_clock::join(const std::shared_ptr<timeline> &line, std::uint64_t tick) {
  if (tick <= line->known) return;
  auto at =
      std::lower_bound(entries_.begin(), entries_.end(), line->uid,
                       [](const instant &e, std::uint64_t uid) { return e.first->uid < uid; });
  if (at != entries_.end() && at->first == line) {
    at->second = std::max(at->second, tick);
    return;
  }
  // Remove outdated entries before the vector grows.
  if (entries_.size() >= 4 && entries_.size() == entries_.capacity()) {
    forget_known();
    at = std::lower_bound(entries_.begin(), entries_.end(), line->uid,
                          [](const instant &e, std::uint64_t uid) { return e.first->uid < uid; });
  }
  entries_.emplace(at, line, tick);
}

void vector_clock::join(const vector_clock &other) {
  if (&other == this) return;
  if (other.entries_.size() <= 2) {
    for (const auto &[line, tick] : other.entries_) join(line, tick);
    return;
  }
  // Both are sorted: one pass, because each insertion would move the rest.
  std::size_t missing = 0;
  auto mine = entries_.begin();
  for (const auto &[line, tick] : other.entries_) {
    while (mine != entries_.end() && mine->first->uid < line->uid) ++mine;
    if (mine != entries_.end() && mine->first == line) {
      mine->second = std::max(mine->second, tick);
    } else if (tick > line->known) {
      ++missing;
    }
  }
  if (missing == 0) return;
  std::vector<instant> both;
  both.reserve(entries_.size() + missing);
  mine = entries_.begin();
  for (const auto &theirs : other.entries_) {
    while (mine != entries_.end() && mine->first->uid < theirs.first->uid) {
      both.push_back(std::move(*mine++));
    }
    if (mine != entries_.end() && mine->first == theirs.first) continue;
    if (theirs.second > theirs.first->known) both.push_back(theirs);
  }
  both.insert(both.end(), std::make_move_iterator(mine), std::make_move_iterator(entries_.end()));
  entries_ = std::move(both);
  forget_known();
}

bool vector_clock::covers(const timeline &line, std::uint64_t tick) const {
  if (tick <= line.known) return true;
  for (const auto &[mine, mine_tick] : entries_) {
    if (mine.get() == &line) return tick <= mine_tick;
  }
  return false;
}

void vector_clock::forget_known() {
  std::erase_if(entries_, [](const instant &e) { return e.second <= e.first->known; });
}

}  // namespace hostcuda
