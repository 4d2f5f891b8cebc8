// Ranges given up by their owners while queued work may still access them, in the order of release and
// indexed by address. Ranges do not overlap. Part of address_space.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "stillmap/vmm/stream.h"
#include "stillmap/vmm/units.h"

namespace stillmap {

class address_block;

struct retiring_range {
  std::shared_ptr<address_block> block;
  virtual_range range;
  fence idle;
};

// Threads: externally synchronised. Cost: logarithmic in the number of ranges.
class retiring_list {
 public:
  using const_iterator = std::list<retiring_range>::const_iterator;
  const_iterator begin() const { return ranges_.begin(); }
  const_iterator end() const { return ranges_.end(); }

  void add(retiring_range r);
  // The range that contains `at`, or nullptr.
  const retiring_range *at(device_address at) const;
  // Removes and returns the ranges that overlap `range`, in the order of release.
  std::vector<retiring_range> take(virtual_range range);
  std::vector<retiring_range> take_all();
  // Removes the addresses `gone`; the rest of a range that overlaps them stays.
  void cut(virtual_range gone);

 private:
  struct known {
    std::list<retiring_range>::iterator where;
    std::uint64_t order = 0;
  };
  using index = std::map<std::uint64_t, known>;  // by where a range begins
  index::iterator first_over(virtual_range range);

  std::list<retiring_range> ranges_;
  index by_address_;
  std::uint64_t next_ = 0;
};

}  // namespace stillmap
