// Several writes of one thread on their way at once: through io_uring, or one after the other where
// that is not allowed, as containers commonly do not.
#pragma once

#include <memory>

#include "stillmap/checkpoint/image/internal/image_file.h"

namespace stillmap::image {

// Threads: one. Several queues may write to one file.
class write_queue {
 public:
  // At most `depth` writes at once, from `depth` slots. Requires: depth >= 1, the file outlives it.
  write_queue(image_file &file, unsigned depth);
  // Waits: until then the kernel may read the memory given to write().
  ~write_queue();
  write_queue(const write_queue &) = delete;
  write_queue &operator=(const write_queue &) = delete;

  // A slot without a write on its way; waits for one. Errors: those of earlier writes.
  outcome<unsigned> free_slot();
  // Begins to write. Requires: slot `i` is free, and `from` stays until free_slot() gives it again.
  // Errors: the system's, of this or of earlier writes.
  done write(unsigned i, bytes_view from, std::uint64_t offset);
  // Waits for all. Errors: as above.
  done finish();

  bool through_ring() const { return ring_ != nullptr; }

 private:
  struct ring;
  struct slot {
    bytes_view left;  // empty: free
    std::uint64_t offset = 0;
  };
  done submit(unsigned i);
  done wait_for_one();

  image_file &file_;
  unsigned depth_;
  unsigned busy_ = 0;
  std::unique_ptr<ring> ring_;
  std::unique_ptr<slot[]> slots_;
};

}  // namespace stillmap::image
