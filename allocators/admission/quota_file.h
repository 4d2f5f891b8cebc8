// The file of a shared quota, and its locks. It is read and written by system calls: a mapping of a file
// that another process truncates raises SIGBUS. Internal. docs/sharing.md#the-file
//
// Record locks of the open file: byte 0 guards the ledger, byte 1 + i is held by participant i while it
// lives. The kernel drops them when the process dies; a forked child has no copy of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "stillmap/allocators/admission/quota_table.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/fork_closed_fd.h"

namespace stillmap {

// What is read of a quota.
enum class quota_part : std::uint8_t {
  all,
  grant,  // what decides a grant: the exchanges only if somebody may wait. Otherwise they are as read before
};

// Errors: corrupt (the file is too short, or is not a quota), the system's.
// Threads: externally synchronised, but for is_open().
class quota_file {
 public:
  // `create`: where there is none. `only_own`: in a directory where others create files too; follows no link, and
  // takes no file that another user owns or may write.
  status open(const char *path, bool only_own, bool create);
  // Without the right to write: of a directory where others create files too, the file of this user. Follows no link.
  status open_to_read(const char *path, std::uint32_t owner);
  bool is_open() const { return file_.get() >= 0; }  // false in a forked child

  // Gives a new file its size. A file of another size is none of ours.
  status allocate() const;
  // Reads the header and the slots used. The slots behind them are left as they are. `into`: as read before, or empty.
  status read(quota_table &into, quota_part part = quota_part::all) const;
  status read_holding(std::size_t i, quota_holding &into) const;
  status write_header(const quota_header &h) const { return write_bytes(&h, sizeof h, 0); }
  // Both parts of a slot, the share last: with that the slot is a participant's, or nobody's.
  status write_slot(std::size_t i, const quota_share &s, const quota_exchange &e) const;
  status write_holding(std::size_t i, const quota_holding &h) const {
    return write_bytes(&h, sizeof h, share_at(i));  // it is the first part
  }
  // A part of a share or an exchange, as write(i, exchange, &quota_exchange::wait).
  template <class Half, class Part>
  status write(std::size_t i, const Half &of, Part Half::*part) const {
    constexpr bool is_share = std::is_same_v<Half, quota_share>;
    const auto offset = static_cast<std::size_t>(reinterpret_cast<const char *>(&(of.*part)) -
                                                 reinterpret_cast<const char *>(&of));
    return write_bytes(&(of.*part), sizeof(Part),
                       (is_share ? share_at(i) : exchange_at(i)) + offset);
  }
  // Appends to the ring of events; the header, which counts them, is written, too.
  status add_event(quota_header &h, quota_record e) const;
  // The latest events, oldest first. May run out of host memory.
  status read_events(const quota_header &h, std::vector<quota_record> &into) const;

  // False: another participant holds the lock (errno EAGAIN or EACCES), or the system's error.
  bool try_lock_ledger() const { return lock(true, 0); }
  void unlock_ledger() const { (void)lock(false, 0); }
  bool try_lock_slot(std::size_t i) const { return lock(true, 1 + i); }
  bool is_slot_locked(std::size_t i) const { return is_locked(1 + i, 1); }
  bool is_any_slot_locked() const { return is_locked(1, quota_table::max_slots); }
  // The process that holds the lock of the ledger: 0 where the kernel does not tell. It names no holder
  // of such a lock directly, but lists the locks of each descriptor that this user may inspect.
  int find_ledger_holder(std::span<const quota_share> participants) const;

 private:
  static std::size_t share_at(std::size_t i);
  static std::size_t exchange_at(std::size_t i);
  status check(bool only_own, std::uint32_t owner) const;
  status read_bytes(void *into, std::size_t bytes, std::size_t at) const;
  status write_bytes(const void *from, std::size_t bytes, std::size_t at) const;
  bool lock(bool take, std::size_t at) const;
  bool is_locked(std::size_t at, std::size_t bytes) const;
  fork_closed_fd file_;
};

}  // namespace stillmap
