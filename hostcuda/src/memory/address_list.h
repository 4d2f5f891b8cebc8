// The addresses at which one physical allocation is mapped, oldest first. Nearly all have one, which takes
// no allocation.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

namespace hostcuda {

class address_list {
 public:
  std::size_t size() const { return first_ == 0 ? 0 : 1 + others_.size(); }

  void add(CUdeviceptr at) {
    if (first_ == 0) {
      first_ = at;
    } else {
      others_.push_back(at);
    }
  }

  void remove(CUdeviceptr at) {
    if (first_ != at) {
      std::erase(others_, at);
    } else if (others_.empty()) {
      first_ = 0;
    } else {
      first_ = others_.front();
      others_.erase(others_.begin());
    }
  }

  template <class Visit>
  void each(Visit visit) const {
    if (first_ != 0) visit(first_);
    for (const CUdeviceptr at : others_) visit(at);
  }

 private:
  CUdeviceptr first_ = 0;  // 0: none
  std::vector<CUdeviceptr> others_;
};

}  // namespace hostcuda
