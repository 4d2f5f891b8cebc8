// Whether this process was forked by one that had used a driver.
#pragma once

namespace stillmap::python {

// A driver has been used in this process.
void note_driver_use();

// CUDA does not work in the child of a process that had used it, and what the child inherited must
// not be released there: the device is the parent's. Cost: two loads.
bool forked_after_use() noexcept;

}  // namespace stillmap::python
