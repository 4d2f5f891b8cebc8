// The addresses at which one physical allocation is mapped, oldest first. Nearly all have one, or two while
// they move, and take no allocation.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

namespace hostcuda {

class address_list {
 public:
  std::size_t size() const {
    return (few_[0] != 0 ? 1 : 0) + (few_[1] != 0 ? 1 : 0) + others_.size();
  }

  void add(CUdeviceptr at) {
    if (few_[0] == 0) {
      few_[0] = at;
    } else if (few_[1] == 0) {
      few_[1] = at;
    } else {
      others_.push_back(at);
    }
  }

  void remove(CUdeviceptr at) {
    if (few_[0] != at && few_[1] != at) {
      std::erase(others_, at);
      return;
    }
    if (few_[0] == at) few_[0] = few_[1];
    few_[1] = 0;
    if (others_.empty()) return;
    few_[1] = others_.front();
    others_.erase(others_.begin());
  }

  template <class Visit>
  void each(Visit visit) const {
    for (const CUdeviceptr at : few_)
      if (at != 0) visit(at);
    for (const CUdeviceptr at : others_) visit(at);
  }

 private:
  CUdeviceptr few_[2] = {};  // 0: none
  std::vector<CUdeviceptr> others_;
};

}  // namespace hostcuda
