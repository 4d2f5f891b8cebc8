// A limit that several processes share: how many bytes of one GPU they may hold together. The
// ledger is a small file in shared memory; bytes are reserved there before they are allocated, so
// the sum never exceeds the limit, not even for a moment. docs/design.md#quotas
//
// A participant that dies, at whatever point, is found out by the lock that the kernel drops with
// it, and what it held is free again. Nothing has to be cleaned up by hand, and no daemon runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/vmm/memory_quota.h"

namespace stillmap {

struct quota_participant {
  std::uint32_t process;   // as its own process namespace numbers it
  std::uint64_t reserved;  // bytes
};

struct quota_stats {
  std::uint64_t limit = 0;
  std::uint64_t reserved = 0;  // by all participants alive
  std::uint64_t own = 0;
  std::vector<quota_participant> participants;  // alive, this one included
};

// One participant's view of a shared limit.
// Threads: safe. Processes: safe. After fork() the child has no share in the parent's: every call
// there is refused with not_supported, and it opens the quota itself.
class shared_quota final : public memory_quota {
 public:
  static constexpr std::size_t max_participants = 1000;

  // Takes part in the quota called `name`, making it with `limit` bytes where there is none yet.
  // `name`: a plain file name, which goes to /dev/shm, or a path. The file is readable and writable
  // for this user only; participants of other users need a path whose file they may write.
  // `limit` 0: whatever the quota that exists already says.
  // Errors: invalid_argument (no name; the quota exists with another limit: value, limit; there is
  //         none and no limit is given), busy (value = participants), corrupt (the file is
  //         something else), the system's (std::system_category).
  static result<std::shared_ptr<shared_quota>> open(const std::string &name, std::uint64_t limit);
  ~shared_quota() override;  // gives back what it holds
  shared_quota(const shared_quota &) = delete;
  shared_quota &operator=(const shared_quota &) = delete;

  // Before allocating: all of `bytes`, or nothing.
  // Errors: out_of_memory (value = bytes, limit = what was left), not_supported (after fork()).
  // Cost:   two system calls; where there is not enough, two more per other participant, to see
  //         whether it still lives.
  status reserve(std::uint64_t bytes) override;

  // After freeing, or when allocating failed.
  // Errors: invalid_argument (more than this participant holds: value, limit; nothing changes).
  status release(std::uint64_t bytes) override;

  // A new limit for all. Lower than what is reserved: nobody loses anything, and nobody gets more
  // until enough is given back.
  // Errors: invalid_argument (0).
  status set_limit(std::uint64_t bytes);

  result<quota_stats> stats();

  // Deletes the file. Those who take part go on with what they opened; who opens it next starts
  // anew. Errors: the system's.
  static status remove(const std::string &name);

 private:
  class ledger;
  explicit shared_quota(std::unique_ptr<ledger> l);
  std::unique_ptr<ledger> ledger_;
};

}  // namespace stillmap
