// Work that keeps a stream busy for as long as it is wanted, on memory of its own.
#pragma once

#include <utility>

#include "bench/costs/machine.h"
#include "bench/support/kernels.h"

namespace stillmap::costs {

class busy_kernel {
 public:
  static result<busy_kernel> load(const machine &m);

  // Returns when it runs. It ends with end(), at the latest after `milliseconds`.
  status start(stream_handle stream, unsigned milliseconds) {
    return kernels_.start_busy(mapped_.there ? mapped_.begin() : plain_.get(), milliseconds,
                               stream);
  }
  status end(stream_handle stream) { return kernels_.end_busy(stream); }

 private:
  explicit busy_kernel(bench::kernels k) : kernels_(std::move(k)) {}

  piece mapped_;        // what it writes to, where there is VMM
  plain_memory plain_;  // and where there is none
  bench::kernels kernels_;
};

}  // namespace stillmap::costs
