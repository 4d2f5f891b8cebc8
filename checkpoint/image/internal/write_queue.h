// Several writes of one thread in flight: with io_uring, or synchronously where io_uring is not
// permitted, as in most containers.
#pragma once

#include <memory>

#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/image/digest.h"

namespace stillmap::image {

// Threads: one. Several queues may write to one file.
class write_queue {
 public:
  // At most `depth` writes at once, from `depth` slots. Requires: depth >= 1, the file outlives it.
  write_queue(checkpoint::block_file &file, unsigned depth);
  // Waits for all writes: until then the kernel may read the memory given to write().
  ~write_queue();
  write_queue(const write_queue &) = delete;
  write_queue &operator=(const write_queue &) = delete;

  // Returns a slot without a write in flight; waits for one. Errors: those of earlier writes.
  result<unsigned> free_slot();
  // Begins to write.
  // Requires: slot `i` is free, and `from` is unchanged until free_slot() returns the slot again.
  // Errors:   errors of system calls, of this write or of earlier ones.
  status write(unsigned i, bytes_view from, std::uint64_t offset);
  // Waits for all writes. Errors: as above.
  status finish();

  bool through_ring() const { return ring_ != nullptr; }

 private:
  struct ring;
  struct slot {
    bytes_view left;  // empty: free
    std::uint64_t offset = 0;
  };
  status submit(unsigned i);
  status wait_for_one();

  checkpoint::block_file &file_;
  unsigned depth_;
  unsigned busy_ = 0;
  bool ring_lost_ = false;  // waiting failed: completions will not arrive
  std::unique_ptr<ring> ring_;
  std::unique_ptr<slot[]> slots_;
};

}  // namespace stillmap::image
