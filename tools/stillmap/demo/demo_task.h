// The memory of a task that travels: cells in a vector that grows, and blocks of an allocator that
// point to each other. Every word follows from its address and from how often its cell or block was
// written, so that whoever has the memory can check all of it by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/device_vector.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Where the task's memory begins: far from where a kernel puts things, so that the processes it
// travels to have the addresses free too. A thread sanitizer leaves few such places.
#ifdef __SANITIZE_THREAD__
inline constexpr std::uint64_t task_begins_at = 0x5600'0000'0000;
#else
inline constexpr std::uint64_t task_begins_at = 0x2000'0000'0000;
#endif
// Tags of its memory.
inline const std::vector<std::string> task_tags{"cells", "blocks"};

// Its first owner.
class travelling_task {
 public:
  // Errors: the driver's.
  static outcome<travelling_task> create(const device &d);
  // Adds cells at the end of the vector.
  outcome<void> grow(std::size_t cells);
  device_address head() const { return cells_.buffer().address(); }
  bool moved() const { return head() != first_head_; }

 private:
  travelling_task(const device &d, device_vector<std::uint64_t> cells,
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
// Reads all of it, from its first word on. Errors: exit_failed, the address that is wrong.
outcome<task_check> check_task(const device &d, device_address head);

// Writes cell after cell, again and again, until stopped: what the task does wherever it is.
class task_at_work {
 public:
  // Errors: the driver's.
  static outcome<task_at_work> start(const device &d, device_address head, std::uint64_t cells);
  task_at_work(task_at_work &&) noexcept;
  task_at_work &operator=(task_at_work &&) = delete;
  ~task_at_work();
  // How often it has written; nothing is written afterwards. Errors: the driver's.
  outcome<std::uint64_t> stop();

 private:
  struct state;
  explicit task_at_work(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace stillmap::tool
