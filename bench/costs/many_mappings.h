// One page at very many addresses: mappings that need no memory of their own.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bench/costs/machine.h"
#include "bench/costs/time_left.h"

namespace stillmap::costs {

class many_mappings {
 public:
  explicit many_mappings(const machine &m) : machine_(m) {}

  // Adds mappings until there are `count`, the driver refuses one, or the time is over. Keeps the
  // mappings after a refusal.
  void grow(std::size_t count, const time_left &left);
  std::size_t count() const { return count_; }  // with access
  const std::optional<error> &refusal() const { return refusal_; }
  // Removes all mappings, as the destructor does. Returns the first of several errors.
  status undo();

  many_mappings(const many_mappings &) = delete;
  many_mappings &operator=(const many_mappings &) = delete;
  ~many_mappings() { (void)undo(); }

 private:
  // Adjacent mappings, so that one call makes all accessible and one unmaps them. WSL refuses large
  // reservations, so there are several.
  static constexpr std::size_t per_chunk = 1024;
  struct chunk {
    addresses at;
    std::size_t mapped = 0;
  };

  virtual_range pages_of(const chunk &c, std::size_t first, std::size_t n) const;
  status extend(chunk &c, std::size_t n);
  status allow(chunk &c, std::size_t first);
  status unmap(chunk &c, std::size_t first);

  const machine &machine_;
  physical page_;
  std::vector<chunk> chunks_;
  std::size_t count_ = 0;
  std::optional<error> refusal_;
};

}  // namespace stillmap::costs
