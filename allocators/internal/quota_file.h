// The file of a shared_quota, and its locks. It is read and written by system calls: a mapping of a file
// that another process truncates raises SIGBUS.
//
// Record locks of the open file: byte 0 guards the ledger, byte 1 + i is held by participant i while it
// lives. The kernel drops them when the process dies; a forked child has no copy of the file.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap {

struct quota_header {
  std::uint64_t magic = 0;  // 0: new, or its creator died before it finished
  std::uint64_t limit = 0;  // bytes
  std::uint64_t used = 0;   // slots that have ever been taken: none behind them is read
  std::uint64_t unused = 0;
};

// Written at once, so a participant that dies leaves the old state or the new one. The owner writes it
// without a lock: `check` tells a reader that it has read parts of both.
struct quota_slot {
  std::uint64_t reserved = 0;  // bytes
  std::uint32_t process = 0;   // 0: nobody's
  std::uint32_t check = 0;

  static quota_slot of(std::uint64_t reserved, std::uint32_t process) {
    return {reserved, process, check_of(reserved, process)};
  }
  bool is_whole() const { return check == check_of(reserved, process); }
  bool operator==(const quota_slot &) const = default;

 private:
  static std::uint32_t check_of(std::uint64_t reserved, std::uint32_t process) {
    return static_cast<std::uint32_t>((reserved * 0x9e3779b97f4a7c15 + process) >> 32) ^ process;
  }
};

struct quota_table {
  static constexpr std::size_t max_slots = 1000;
  static constexpr std::uint64_t magic = 0x32544f55514d5453;  // "STMQUOT2"
  quota_header header;
  std::array<quota_slot, max_slots> slots;

  std::span<quota_slot> used() { return std::span(slots).first(header.used); }
  std::span<const quota_slot> used() const { return std::span(slots).first(header.used); }
};

// Errors: corrupt (the file is too short, or is not a quota), the system's.
// Threads: externally synchronised, but for is_open().
class quota_file {
 public:
  // Creates the file where there is none. `only_own`: in a directory where others create files too;
  // follows no link, and takes no file that another user owns or may write.
  status open(const char *path, bool only_own);
  bool is_open() const { return file_.get() >= 0; }  // false in a forked child

  // Gives a new file its size. A file of another size is none of ours.
  status allocate() const;
  // Reads the header and the slots used. The slots behind them are left as they are.
  status read(quota_table &into) const;
  status read_slot(std::size_t i, quota_slot &into) const;
  status write_slot(std::size_t i, const quota_slot &s) const;
  status write_header(const quota_header &h) const;

  // False: another participant holds the lock (errno EAGAIN or EACCES), or the system's error.
  bool try_lock_ledger() const { return lock(true, 0); }
  void unlock_ledger() const { (void)lock(false, 0); }
  bool try_lock_slot(std::size_t i) const { return lock(true, 1 + i); }
  bool is_slot_locked(std::size_t i) const { return is_locked(1 + i, 1); }
  bool is_any_slot_locked() const { return is_locked(1, quota_table::max_slots); }
  // The process that holds the lock of the ledger: 0 where the kernel does not tell. It names no holder
  // of such a lock directly, but lists the locks of each descriptor that this user may inspect.
  int find_ledger_holder(std::span<const quota_slot> participants) const;

 private:
  status read_bytes(void *into, std::size_t bytes, std::size_t at) const;
  status write_bytes(const void *from, std::size_t bytes, std::size_t at) const;
  bool lock(bool take, std::size_t at) const;
  bool is_locked(std::size_t at, std::size_t bytes) const;
  fork_closed_fd file_;
};

}  // namespace stillmap
