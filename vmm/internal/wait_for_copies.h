// Waiting for copies that use the caller's memory.
#pragma once

#include "stillmap/vmm/driver.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// Waits until the copies queued on `s` have completed: for the stream, or if that fails, for the device.
// Requires: the device's context is current.
inline status wait_for_copies(const driver &drv, stream_ref s) {
  const status waited = drv.synchronize_stream(s.get());
  if (waited || drv.synchronize_context()) return {};
  return waited;
}

}  // namespace stillmap
