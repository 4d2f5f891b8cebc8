// The device memory of a machine that several processes share (setting machine=NAME).
//
// A file in /dev/shm has a slot for each process, with its bytes on each device, and a record for each
// allocation that several processes may hold. A process holds a lock on its slot while it lives, which
// the kernel drops: whoever finds too little memory takes back the slots that nobody has locked.
// hostcuda/docs/memory.md
#pragma once

#include <cuda.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hostcuda {

// Names an allocation for all processes.
struct shared_key {
  std::uint64_t file = 0;   // inode of its pages; 0: held by this process alone
  std::uint64_t piece = 0;  // the allocation in this file; 0: it is the whole file

  auto operator<=>(const shared_key &) const = default;
};

// An allocation as another process describes it.
struct shared_piece {
  shared_key key;
  std::size_t bytes = 0;
};

// Joins the machine that the settings name, if they name one, with nothing in use. Does nothing in a
// process that has joined. Prints the reason of an error on stderr.
// Errors: INVALID_VALUE (its devices are others, or it has too many processes), OPERATING_SYSTEM.
CUresult join_machine();

// Leaves the machine: all that this process holds is free then. The last process deletes the file.
// Requires: no other thread is inside the driver.
void leave_machine();

// Whether this process takes part in a machine. False in a forked child.
inline constinit std::atomic<bool> joined_machine{false};
inline bool in_machine() {
  return joined_machine.load(std::memory_order_acquire);
}

// The five functions below require in_machine(). Each has the file locked for a few system calls.

// Counts `bytes` more for this process. Returns false, with nothing changed, if all processes together
// would then use more than `limit` bytes of the device.
bool charge_machine(int device, std::size_t bytes, std::size_t limit);
void uncharge_machine(int device, std::size_t bytes);

// Counts bytes that this process is charged with for all holders together from now on, until the last
// of them drops the allocation or dies. Returns false, with nothing changed, without room for a record.
bool share_in_machine(const shared_piece &what, int device);
// Makes this process a holder of another's allocation. If there is no holder, this one is charged, and
// the result is false if the device's memory would then exceed `limit`.
bool hold_in_machine(const shared_piece &what, int device, std::size_t limit);
// Drops what share (`own` is its bytes) or hold (0) has added.
void drop_in_machine(const shared_key &key, int device, std::size_t own);

// Counts a context of this process on a device, or takes one away.
void count_machine_context(int device, int by);

struct machine_process {
  unsigned process = 0;   // its id
  std::size_t bytes = 0;  // that it has allocated
};

// The two functions below need not take part, and find nothing if the settings name no machine, or one
// that does not exist.

// Bytes of a device in use, but for those that this process has allocated.
std::size_t bytes_of_others(int device);
// The live processes with a context on a device.
std::vector<machine_process> machine_processes(int device);

}  // namespace hostcuda
