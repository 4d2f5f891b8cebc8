// Wakes the thread of another participant: a FIFO beside the quota's file. Internal. docs/sharing.md#the-file
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap {

// A lost or a needless ring does no harm: the table says what is asked, and whoever waits rings again.
// Threads: one waits, any ring.
class quota_bell {
 public:
  quota_bell() = default;
  // Deletes the FIFO.
  ~quota_bell();
  quota_bell(const quota_bell &) = delete;

  // Makes the FIFO of a participant, with the access rights of the quota's file; one that is there was that of a dead
  // participant. May run out of host memory. Errors: the system's.
  status open(const std::string &quota_path, std::size_t participant);
  bool is_open() const { return fifo_.get() >= 0; }
  // Returns after a ring, or when the time is over.
  void wait(std::chrono::milliseconds timeout) const;
  void ring() const;

  // Of another participant. Does nothing where there is no FIFO.
  static void ring(const std::string &quota_path, std::size_t participant) noexcept;
  // Deletes one that a dead participant has left.
  static void remove(const std::string &quota_path, std::size_t participant) noexcept;

 private:
  std::string path_;
  fork_closed_fd fifo_;
};

}  // namespace stillmap
