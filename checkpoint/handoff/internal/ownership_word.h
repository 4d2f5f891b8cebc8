// Whose the memory is, as one word that both processes share. It changes by compare-and-exchange,
// so there is one answer at every moment, and it outlives either of them. docs/handoff.md
#pragma once

#include <atomic>
#include <cstdint>

#include "stillmap/vmm/physical_memory.h"

namespace stillmap::handoff {

enum class ownership : std::uint32_t {
  giver = 0,     // from the start
  offered = 1,   // the giver's still, but the taker may take it now
  taker = 2,     // taken: the commit point
  revoked = 3,   // the giver's for good: the taker was too late
  returned = 4,  // the giver's again: the taker died before it had said that it took
};

// Owner of one mapping of the word. Threads: safe.
class ticket {
 public:
  // Errors: the system's.
  static result<ticket> create();
  // The one of another process. Errors: corrupt (no ticket, or one that could shrink under us), the
  // system's.
  static result<ticket> open(owned_fd fd);
  ticket(ticket &&o) noexcept;
  ticket &operator=(ticket &&) = delete;
  ~ticket();

  int fd() const { return fd_.get(); }
  ownership now() const;

  // Each: whether it was so. What was not so stays as it is.
  bool offer() { return change(ownership::giver, ownership::offered); }
  bool take() { return change(ownership::offered, ownership::taker); }
  bool revoke();  // offered or not, but not taken
  bool take_back() { return change(ownership::taker, ownership::returned); }

 private:
  ticket(owned_fd fd, std::uint32_t *word) : fd_(std::move(fd)), word_(word) {}
  static result<ticket> map(owned_fd fd);
  bool change(ownership from, ownership to);
  owned_fd fd_;
  std::uint32_t *word_;
};

}  // namespace stillmap::handoff
