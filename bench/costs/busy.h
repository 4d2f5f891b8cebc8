// Work that keeps a stream busy for as long as it is wanted: a kernel that watches a flag and a
// clock. On hostcuda a host function stands for it.
#pragma once

#include <cstdint>

#include "bench/costs/machine.h"

namespace stillmap::costs {

class busy_kernel {
 public:
  static result<busy_kernel> load(const machine &m);

  // Returns when it runs. It ends with end(), at the latest after `milliseconds`. It writes to
  // memory of its own.
  status start(stream_handle stream, unsigned milliseconds);
  status end(stream_handle stream);

 private:
  busy_kernel() = default;
  std::uint32_t *flags() const { return static_cast<std::uint32_t *>(flags_.get()); }

  const driver *driver_ = nullptr;
  piece mapped_;         // what it writes to, where there is VMM
  plain_memory plain_;   // and where there is none
  pinned_memory flags_;  // [0]: stop, [1]: it runs
  own_module module_;
  function_handle function_ = nullptr;
};

}  // namespace stillmap::costs
