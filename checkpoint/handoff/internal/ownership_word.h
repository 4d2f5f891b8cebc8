// The ownership word of a handoff: one atomic word in memory that both processes share. It changes
// by compare-and-exchange, so that exactly one process owns the memory at every moment, and it
// outlives either process. docs/handoff.md
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::handoff {

enum class ownership : std::uint32_t {
  sender = 0,    // initially
  offered = 1,   // owned by the sender; the receiver may take ownership
  receiver = 2,  // the commit point was passed
  revoked = 3,   // owned by the sender for good: the receiver was too late
  returned = 4,  // owned by the sender again: the receiver died before it reported the commit
};

// Owner of one mapping of the word. Threads: safe.
class ownership_word {
 public:
  // Errors: the system's.
  static result<ownership_word> create();
  // Maps the word of another process.
  // Errors: corrupt (not an ownership word, or a file that could shrink), the system's.
  static result<ownership_word> open(owned_fd fd);

  int fd() const { return fd_.get(); }
  ownership load() const;

  // Each returns whether it made its transition; otherwise the word did not change.
  bool offer() { return change(ownership::sender, ownership::offered); }
  bool commit() { return change(ownership::offered, ownership::receiver); }
  bool revoke();  // from everything but `receiver`
  bool take_back() { return change(ownership::receiver, ownership::returned); }

 private:
  struct unmap {
    void operator()(std::uint32_t *word) const;
  };
  ownership_word(fork_closed_fd fd, std::uint32_t *word) : fd_(std::move(fd)), word_(word) {}
  static result<ownership_word> map(fork_closed_fd fd);
  bool change(ownership from, ownership to);
  fork_closed_fd fd_;
  std::unique_ptr<std::uint32_t, unmap> word_;
};

}  // namespace stillmap::handoff
