// A memory limit that several processes share: the bytes of one GPU that they may hold together.
// The ledger is a small file in shared memory. Bytes are reserved in it before they are allocated,
// so the sum never exceeds the limit. docs/quotas.md
//
// The kernel drops a participant's file lock when the process dies; the others then reclaim its
// reservation. No manual cleanup and no daemon is needed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/vmm/memory_quota.h"

namespace stillmap {

struct quota_participant {
  std::uint32_t process;   // process id, in the participant's own PID namespace
  std::uint64_t reserved;  // bytes
};

struct quota_stats {
  std::uint64_t limit = 0;                      // bytes
  std::uint64_t reserved = 0;                   // bytes, by all live participants
  std::uint64_t own = 0;                        // bytes, by this participant
  std::vector<quota_participant> participants;  // live ones, including this one
};

// One participant's handle of a shared limit.
// Threads:   safe.
// Processes: safe. They trust each other to keep to the limit, but none can end another: a file that
//            one truncates or overwrites is an error of the others, which keep what they hold.
// Errors:    of each call below but remove(): busy (another process has held the ledger's lock for
//            lock_timeout; named where this user may inspect it), corrupt (the file has been
//            truncated or overwritten), the system's (std::system_category); the subject is the
//            path. Nothing has changed then.
// Fork:      the child is no participant: every call there fails with not_supported. It can open
//            the quota itself.
class shared_quota final : public memory_quota {
 public:
  static constexpr std::size_t max_participants = 1000;
  // How long a call waits for another process that has the ledger locked. That takes microseconds,
  // unless the process is stopped (SIGSTOP, a debugger, a frozen cgroup) in the middle of it.
  static constexpr std::chrono::milliseconds lock_timeout{2'000};

  // Opens the quota `name`, and creates it with a limit of `limit` bytes if it does not exist.
  // `name` is a file name, which is placed in /dev/shm, or a path. The file is readable and
  // writable for its owner only. In /dev/shm, where everybody creates files, no link is followed, and
  // a file that another user owns or may write is refused; participants of other users need a path
  // to a file that they may write. `limit` 0 accepts the limit of the existing quota.
  // Errors: invalid_argument (empty name; the quota exists with another limit: value, limit, in
  //         bytes; it does not exist and `limit` is 0), busy (value: participants), corrupt (the
  //         file is not a quota: value is its size), the system's (EFBIG: RLIMIT_FSIZE is smaller
  //         than the ledger, 16 KB; of a file name, ELOOP: it is a link, EPERM: another user owns
  //         the file or may write it).
  static result<std::shared_ptr<shared_quota>> open(const std::string &name, std::uint64_t limit);
  ~shared_quota() override;  // releases this participant's reservation
  shared_quota(const shared_quota &) = delete;
  shared_quota &operator=(const shared_quota &) = delete;

  // Reserves all of `bytes`, or nothing. Call it before allocating.
  // Errors: out_of_memory (value: bytes requested, limit: bytes left), not_supported (after fork).
  // Cost:   four system calls, about 1.1 µs without contention (five, 2 µs, where more than 64 take
  //         part); where too little is left, one more for each other participant, to detect dead
  //         ones.
  status reserve(std::uint64_t bytes) override;

  // Returns bytes to the quota, after freeing or a failed allocation. Waits for no other process.
  // Ensures: failure: nothing changed.
  // Errors:  invalid_argument (more than this participant has reserved: value, limit, in bytes).
  // Cost:    two system calls, about 0.5 µs.
  status release(std::uint64_t bytes) override;

  // Sets the limit for all participants. Existing reservations stay. Where they exceed the limit,
  // no further bytes are granted until enough are released.
  // Errors: invalid_argument (0).
  status set_limit(std::uint64_t bytes);

  result<quota_stats> stats();

  // Deletes the file. Participants keep using the deleted ledger; the next open creates a new one.
  // Errors: the system's.
  static status remove(const std::string &name);

 private:
  class ledger;
  explicit shared_quota(std::unique_ptr<ledger> l);
  std::unique_ptr<ledger> ledger_;
};

}  // namespace stillmap
