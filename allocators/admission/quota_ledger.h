// A quota's file in transactions: each reads the table under the file's lock and writes what it changes.
// Internal. docs/sharing.md#the-file
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "stillmap/allocators/admission/quota_file.h"
#include "stillmap/allocators/admission/quota_table.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

// What the lock of a ledger's threads permits. clang compares names, and the mutex would have another one in each class
// that relies on it. So this does not tell two ledgers apart.
class STILLMAP_CAPABILITY("ledger") ledger_role {};
inline constexpr ledger_role ledger_held;

class STILLMAP_SCOPED_CAPABILITY ledger_threads {
 public:
  explicit ledger_threads(std::mutex &m) STILLMAP_ACQUIRE(ledger_held) : lock_(m) {}
  ledger_threads(const ledger_threads &) = delete;
  ~ledger_threads() STILLMAP_RELEASE() {}

 private:
  const std::lock_guard<std::mutex> lock_;
};

// Threads: safe. A process that dies in a transaction leaves the table as it was, or as it should be: each part is
// written at once, and no part contradicts another.
class quota_ledger {
  using clock = std::chrono::steady_clock;

 public:
  // A bare name is a file in /dev/shm that belongs to this user alone.
  explicit quota_ledger(const std::string &name);
  const std::string &path() const { return path_; }
  bool only_own() const { return only_own_; }
  quota_file &file() { return file_; }

  // How long a transaction waits for the file's lock.
  static constexpr std::chrono::milliseconds lock_timeout{2'000};

  // Calls act(table) with both locks held, and `part` of the table read. Errors: busy (another process has held the file's lock for lock_timeout; named
  // where this user may inspect it), those of the file, and of act.
  template <class Act>
  status transact(Act &&act, quota_part part = quota_part::all) STILLMAP_EXCLUDES(ledger_held) {
    const ledger_threads threads(mutex);
    STILLMAP_RETURN_IF_ERROR(lock_file());
    const file_lock locked(file_);
    STILLMAP_RETURN_IF_ERROR(file_.read(table_, part));
    return act(table_);
  }
  // The first transaction with an opened file: creates the table where the file is new. Errors: invalid_argument
  // (the quota has another limit, or is new and `limit` is 0).
  template <class Act>
  status begin(std::uint64_t limit, Act &&act) STILLMAP_EXCLUDES(ledger_held) {
    const ledger_threads threads(mutex);
    STILLMAP_RETURN_IF_ERROR(lock_file());
    const file_lock locked(file_);
    STILLMAP_RETURN_IF_ERROR(create_table(limit));
    return act(table_);
  }
  // With the mutex held: of threads of this process alone, as record locks do not exclude those.
  mutable std::mutex mutex;

  // ---- within a transaction ----

  // Frees the slots of participants that have died. `self`: whose slot this process holds; npos: none.
  status remove_dead(quota_table &t, std::size_t self) const;
  status note(quota_table &t, quota_record e) const;
  static constexpr std::size_t npos = SIZE_MAX;
  static tl::unexpected<error> truncated();

 private:
  // Of the file's lock, which lock_file() took.
  class file_lock {
   public:
    explicit file_lock(const quota_file &file) : file_(file) {}
    ~file_lock() { file_.unlock_ledger(); }
    file_lock(const file_lock &) = delete;

   private:
    const quota_file &file_;
  };

  status lock_file() STILLMAP_REQUIRES(ledger_held);
  status create_table(std::uint64_t limit) STILLMAP_REQUIRES(ledger_held);
  static void pause(int tries);
  status held_too_long() const;

  const std::string path_;
  const bool only_own_;
  quota_file file_;
  quota_table table_ STILLMAP_GUARDED_BY(ledger_held);
};

}  // namespace stillmap
