// A memory limit that several processes share: the bytes of one GPU that they may hold together, with a minimum,
// a maximum and a priority for each. One that needs more than there is asks the others, which give back
// what they can spare, and waits for it, up to a deadline. docs/sharing.md
//
// The ledger is a small file in shared memory. Bytes are reserved in it before they are allocated, so the sum never
// exceeds the limit. The kernel drops a participant's file lock when the process dies; the others then
// free its reservation. No manual cleanup and no daemon is needed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/allocators/quota_types.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap {

// One participant's handle of a shared limit.
// Threads:   safe.
// Processes: safe. They trust each other to keep to the limit, but none can end another: a file that
//            one truncates or overwrites is an error of the others, which keep what they hold.
// Errors:    of each call below but remove(): busy (another process has held the ledger's lock for
//            lock_timeout; named where this user may inspect it), corrupt (the file has been
//            truncated or overwritten), the system's (std::system_category); the subject is the
//            path. Nothing has changed then.
// Lifetime:  the last reference does not go within a reclaimer of it.
// Fork:      the child is no participant: every call there fails with not_supported. It can open
//            the quota itself.
class shared_quota final : public memory_quota, public std::enable_shared_from_this<shared_quota> {
 public:
  static constexpr std::size_t max_participants = 1000;
  // How long a call waits for another process that has the ledger locked. That takes microseconds,
  // unless the process is stopped (SIGSTOP, a debugger, a frozen cgroup) in the middle of it.
  static constexpr std::chrono::milliseconds lock_timeout{2'000};

  // Opens the quota `name`, and creates it with options.limit if it does not exist. `name` is a file name, which is
  // placed in /dev/shm, or a path. The file is readable and writable for its owner only. In /dev/shm, where
  // everybody creates files, no link is followed, and a file that another user owns or may write is refused;
  // participants of other users need a path to a file that they may write.
  // Errors: invalid_argument (empty name; the quota exists with another limit: value, limit, in
  //         bytes; it does not exist and no limit is given; the terms: the minimum exceeds the maximum, or what the
  //         limit leaves beside the minima of the others), busy (value: participants),
  //         corrupt (the file is not a quota: value is its size), the system's (EFBIG: RLIMIT_FSIZE is smaller
  //         than the ledger, 185 KB; of a file name, ELOOP: it is a link, EPERM: another user owns
  //         the file or may write it).
  static result<std::shared_ptr<shared_quota>> open(const std::string &name,
                                                    shared_quota_options options);
  // Releases this participant's reservation. Waits for lock_timeout at most.
  ~shared_quota() override;
  shared_quota(const shared_quota &) = delete;
  shared_quota &operator=(const shared_quota &) = delete;

  // Reserves all of `bytes`, or nothing, and asks nobody. Call it before allocating. Those that wait come first: it
  // leaves them what they wait for, unless it stays within this participant's minimum or has a higher priority.
  // Errors: out_of_memory (value: bytes requested, limit: bytes left), not_supported (after fork).
  // Cost:   four system calls, about 1.2 µs without contention (1.4 µs where 100 take part; a fifth call after
  //         participants have come, and while somebody waits); where too little is left, one more for each other
  //         participant, to detect dead ones. None where a room (make_room) has the bytes.
  status reserve(std::uint64_t bytes) override;

  // Returns bytes to the quota, after freeing or a failed allocation. Waits for no other process.
  // Ensures: failure: nothing changed.
  // Errors:  invalid_argument (more than this participant has reserved: value, limit, in bytes).
  // Cost:    two system calls, about 0.5 µs.
  status release(std::uint64_t bytes) override;

  // memory_quota::available, without rooms. Cost: as reserve(), which writes more.
  result<std::uint64_t> available(std::uint64_t bytes) override;

  // memory_quota::make_room: asks the others for cached memory, then for what is evictable, then whole tasks, those of
  // lowest priority first and among them the ones with most above their minimum; what costs its holder something
  // only of those that do not have a higher priority and do not wait longer. Of those who wait, the highest priority
  // and then the first is served first; one that 16 later requests of higher priority have overtaken comes before
  // all. Waits for options.timeout at most.
  // Errors: busy (detail().found: who holds what, who did not answer; value, limit: bytes requested, left);
  //         out_of_memory (the maximum, or the minima of the others, never allow it), not_supported (after fork).
  status make_room(std::uint64_t bytes) override;
  void end_room() noexcept override;

  // memory_quota::add_reclaimer. Without start_thread(), nothing is asked for until the program polls.
  std::unique_ptr<reclaimer_registration> add_reclaimer(
      reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim) override;
  result<std::uint64_t> retry_reclaim() override;
  // Starts a thread that answers those that ask for cached and evictable memory. It sleeps until somebody asks, and
  // ends with the object. Once is enough.
  // Errors: the system's.
  status start_thread();
  // A point at which all memory of this task may be taken, and anything else that was asked for: gives it back, on
  // this thread. Returns the bytes released.
  // Cost: three system calls where nothing is asked for, four while somebody waits.
  result<std::uint64_t> poll();

  // Sets the limit for all participants. Existing reservations stay. Where they exceed the limit,
  // no further bytes are granted until enough are released: `deferred`. `if_revision`: fails as busy (value: the
  // revision now) where the limit or terms have changed since quota_stats::revision said that.
  // Errors: invalid_argument (0; less than the minima of the participants: value, limit).
  static result<quota_change> set_limit(const std::string &name, std::uint64_t bytes,
                                        std::optional<std::uint64_t> if_revision = {});
  result<quota_change> set_limit(std::uint64_t bytes,
                                 std::optional<std::uint64_t> if_revision = {});
  // Sets the terms of the participants of a process, as its process id stands in the statistics.
  // Errors: invalid_argument (no such participant; the minimum exceeds the maximum, or what the limit leaves).
  static result<quota_change> set_terms(const std::string &name, std::uint32_t process,
                                        const quota_terms &terms,
                                        std::optional<std::uint64_t> if_revision = {});

  // May run out of host memory.
  result<quota_stats> stats();
  // Of a quota that this process need not take part in.
  static result<quota_stats> stats_of(const std::string &name);
  // The latest 512 decisions, oldest first.
  static result<std::vector<quota_event>> events_of(const std::string &name);
  // Both of a quota in /dev/shm that may be another user's, for a monitor. It reads a bounded number of bytes without
  // the lock, writes nothing, and waits for nobody. So its figures may be of different moments. They are what the
  // owner's processes have written, and no evidence.
  // `owner`: the user who must own the file. Only root can open that of another.
  // Errors: invalid_argument (the name is a path), corrupt (the file is not a quota), the system's (EPERM: another
  //         user owns the file, or may write it; ELOOP: it is a link).
  static result<quota_observation> observe(const std::string &name, std::uint32_t owner);

  // Deletes the file, and what is beside it. Participants keep using the deleted ledger, in which they hear within a second;
  // the next open creates a new one.
  // Errors: the system's.
  static status remove(const std::string &name);

 private:
  class participant;
  explicit shared_quota(std::unique_ptr<participant> p);
  std::unique_ptr<participant> participant_;
};

}  // namespace stillmap
