// The resources of hostcuda and of the system that this process holds: compared before and after an
// operation that must not leak.
#pragma once

#include <string>

#include "stillmap/vmm/driver.h"

namespace stillmap::testing {

// Requires: the driver is a hostcuda.
class held {
 public:
  static held now(const driver &d);
  // What has come to it since, as text; empty: nothing. Where it is something, asks again for a
  // while: hostcuda closes files in its own time, and threads end in theirs.
  std::string more_now(const driver &d) const;
  // The same without asking again.
  bool same_as(const held &before) const {
    return driver_ == before.driver_ && descriptors_ <= before.descriptors_;
  }

 private:
  // Handles, mappings, reservations, streams, events, memory, pinned ranges, imports.
  std::string driver_;
  long descriptors_ = 0;
};

}  // namespace stillmap::testing
