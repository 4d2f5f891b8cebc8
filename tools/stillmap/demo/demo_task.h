// The task of the lifecycle demo: cells in a vector that grows, and blocks of an allocator that point
// to each other. Every word follows from its address and its cell's number of writes, so any process
// that has the memory can check all of it.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/device_vector.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// The first address of the task's memory: far from what the kernel maps, so that it is free in the
// other processes too. ThreadSanitizer leaves few such addresses.
#ifdef __SANITIZE_THREAD__
inline constexpr std::uint64_t task_begins_at = 0x5600'0000'0000;
#else
inline constexpr std::uint64_t task_begins_at = 0x2000'0000'0000;
#endif
// Tags of its memory.
inline const std::vector<std::string> task_tags{"cells", "blocks"};

class demo_task {
 public:
  // Errors: the driver's.
  static outcome<demo_task> create(const device &d);
  // Adds cells at the end of the vector.
  outcome<void> grow(std::size_t cells);
  device_address head() const { return cells_.buffer().address(); }
  bool moved() const { return head() != first_head_; }

 private:
  demo_task(const device &d, device_vector<std::uint64_t> cells,
            std::unique_ptr<caching_allocator> heap)
      : device_(d), cells_(std::move(cells)), heap_(std::move(heap)) {}
  outcome<void> make_blocks();
  device device_;
  device_vector<std::uint64_t> cells_;
  std::unique_ptr<caching_allocator> heap_;
  std::vector<void *> blocks_;
  device_address first_head_;
};

struct task_check {
  std::uint64_t cells = 0, blocks = 0, bytes = 0;
  std::uint64_t writes = 0;  // of all cells together
};
// Reads all of the memory from its first word on. Errors: exit_differs, with the address.
outcome<task_check> check_task(const device &d, device_address head);

// Writes all cells repeatedly, until it is stopped.
class running_task {
 public:
  // Errors: the driver's.
  static outcome<std::unique_ptr<running_task>> start(const device &d, device_address head,
                                                      std::uint64_t cells);
  // Stops, and returns the number of writes. Errors: the driver's.
  outcome<std::uint64_t> stop();

 private:
  running_task(const device &d, device_address head) : device_(d), head_(head) {}
  void run(const std::stop_token &stopped);
  const device device_;
  const device_address head_;
  std::vector<std::uint64_t> versions_;  // of the cells
  std::uint64_t writes_ = 0;
  status written_;
  std::jthread thread_;
};

}  // namespace stillmap::tool
