// Holds the work of a stream until a test releases it, on any driver: on hostcuda by its own control,
// elsewhere by a wait at the end of the stream (cuStreamWaitValue32, or a host function that waits).
#pragma once

#include "stillmap/vmm/driver.h"

namespace stillmap::testing {

// What is queued from now on does not run until release(). Requires: it is not held already.
// Whatever waits for the device waits for this, too.
void hold(stream_handle stream);
void release(stream_handle stream);

}  // namespace stillmap::testing
