#include "stillmap/allocators/shared_quota.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "stillmap/allocators/internal/quota_file.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

bool is_bare(const std::string &name) {
  return name.find('/') == std::string::npos;
}

std::string path_of(const std::string &name) {
  return is_bare(name) ? "/dev/shm/" + name : name;
}

}  // namespace

class shared_quota::ledger {
 public:
  explicit ledger(const std::string &name) : path_(path_of(name)), only_own_(is_bare(name)) {}
  ~ledger() {
    const operation_scope scope("shared_quota::~shared_quota");
    quota_slot found;
    // The slot is free once the kernel has dropped its lock, whatever is in it.
    if (!joined_ || !file_.is_open() || !file_.read_slot(slot_, found)) return;
    if (found == own_) (void)file_.write_slot(slot_, {});
  }

  status open(std::uint64_t limit) {
    STILLMAP_RETURN_IF_ERROR(file_.open(path_.c_str(), only_own_));
    const lock_guard threads(mutex_);
    STILLMAP_RETURN_IF_ERROR(lock_ledger());
    const ledger_lock locked(file_);
    // A file without contents is new, unless participants use it.
    const bool in_use = file_.is_any_slot_locked();
    if (!in_use) STILLMAP_RETURN_IF_ERROR(file_.allocate());
    STILLMAP_RETURN_IF_ERROR(file_.read(table_));
    if (in_use && table_.header.magic == 0) return truncated();
    if (table_.header.magic == 0) {
      if (limit == 0) {
        return make_error(errc::invalid_argument,
                          "the quota does not exist, and no limit was given to create it");
      }
      table_.header = {quota_table::magic, limit, 0, 0};
      STILLMAP_RETURN_IF_ERROR(file_.write_header(table_.header));
    }
    if (limit != 0 && table_.header.limit != limit) {
      return make_error(errc::invalid_argument, "the quota exists with another limit", limit,
                        table_.header.limit, error_unit::bytes);
    }
    return take_slot();
  }

  status reserve(std::uint64_t bytes) {
    STILLMAP_RETURN_IF_ERROR(check_not_forked());
    const lock_guard threads(mutex_);
    STILLMAP_RETURN_IF_ERROR(lock_ledger());
    const ledger_lock locked(file_);
    STILLMAP_RETURN_IF_ERROR(read());
    std::uint64_t left = room();
    if (left < bytes) {
      STILLMAP_RETURN_IF_ERROR(reclaim_dead_participants());
      left = room();
    }
    if (left < bytes) {
      return make_error(errc::out_of_memory, "the request exceeds the bytes left in the quota",
                        bytes, left, error_unit::bytes);
    }
    return write_own(own_.reserved + bytes);
  }

  // Without the lock of the ledger, so that it never waits for another process: no other process
  // writes this slot while this one lives.
  status release(std::uint64_t bytes) {
    STILLMAP_RETURN_IF_ERROR(check_not_forked());
    const lock_guard threads(mutex_);
    if (bytes > own_.reserved) {
      return make_error(errc::invalid_argument, "the bytes exceed this participant's reservation",
                        bytes, own_.reserved, error_unit::bytes);
    }
    quota_slot found;
    STILLMAP_RETURN_IF_ERROR(file_.read_slot(slot_, found));
    if (found != own_) return truncated();
    return write_own(own_.reserved - bytes);
  }

  status set_limit(std::uint64_t bytes) {
    if (bytes == 0) return make_error(errc::invalid_argument, "the limit must not be 0");
    STILLMAP_RETURN_IF_ERROR(check_not_forked());
    const lock_guard threads(mutex_);
    STILLMAP_RETURN_IF_ERROR(lock_ledger());
    const ledger_lock locked(file_);
    STILLMAP_RETURN_IF_ERROR(read());
    table_.header.limit = bytes;
    return file_.write_header(table_.header);
  }

  result<quota_stats> stats() {
    STILLMAP_RETURN_IF_ERROR(check_not_forked());
    const lock_guard threads(mutex_);
    STILLMAP_RETURN_IF_ERROR(lock_ledger());
    const ledger_lock locked(file_);
    STILLMAP_RETURN_IF_ERROR(read());
    STILLMAP_RETURN_IF_ERROR(reclaim_dead_participants());
    quota_stats out;
    out.limit = table_.header.limit;
    out.own = own_.reserved;
    for (const quota_slot &s : table_.used()) {
      if (s.process == 0) continue;
      out.reserved += s.reserved;
      out.participants.push_back({s.process, s.reserved});
    }
    return out;
  }

  // Names the file in an error. A refusal, which is ordinary, costs no host memory.
  template <class T>
  T named(T r) const {
    if (r || r.error().is(errc::out_of_memory)) return r;
    return tl::unexpected<error>(r.error().about(path_));
  }

 private:
  using clock = std::chrono::steady_clock;

  // Of the ledger's lock, which lock_ledger() took.
  class ledger_lock {
   public:
    explicit ledger_lock(const quota_file &file) : file_(file) {}
    ~ledger_lock() { file_.unlock_ledger(); }
    ledger_lock(const ledger_lock &) = delete;

   private:
    const quota_file &file_;
  };

  // A stopped process keeps its locks, and no wait for one has a timeout: tries again and again. Lets
  // go of the mutex meanwhile, so that threads that release wait for nobody.
  status lock_ledger() STILLMAP_REQUIRES(mutex_) {
    clock::time_point until{};
    for (int tries = 0; !file_.try_lock_ledger(); ++tries) {
      if (errno != EAGAIN && errno != EACCES) {
        return make_system_error(errno, "the ledger cannot be locked");
      }
      if (tries == 0) until = clock::now() + lock_timeout;
      mutex_.unlock();
      const status waited = wait_for_ledger(tries, until);
      mutex_.lock();
      STILLMAP_RETURN_IF_ERROR(waited);
    }
    return {};
  }

  status wait_for_ledger(int tries, clock::time_point until) {
    if (clock::now() >= until) return held_too_long();
    if (tries < 64) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(tries, 1000)));
    }
    return {};
  }

  status held_too_long() {
    return with_host_memory([&]() -> status {
      const auto table = std::make_unique<quota_table>();
      STILLMAP_RETURN_IF_ERROR(file_.read(*table));
      const int holder = file_.find_ledger_holder(table->used());
      const error e =
          make_error(errc::busy,
                     "a process that is stopped or does not run holds the ledger's lock: let it "
                     "continue (SIGCONT), or end it",
                     static_cast<std::uint64_t>(lock_timeout.count()), 0, error_unit::milliseconds)
              .value();
      if (holder == 0) return tl::unexpected(e);
      return tl::unexpected(e.with({.found = "process " + std::to_string(holder)}));
    });
  }

  // The functions below require the ledger's lock, too, except write_own().

  // Reads the ledger, and finds out whether it is still the one that this participant has joined.
  status read() STILLMAP_REQUIRES(mutex_) {
    STILLMAP_RETURN_IF_ERROR(file_.read(table_));
    const bool same = table_.header.magic != 0 && slot_ < table_.header.used;
    return same && table_.slots[slot_] == own_ ? status() : truncated();
  }

  std::uint64_t room() const STILLMAP_REQUIRES(mutex_) {
    std::uint64_t sum = 0;
    for (const quota_slot &s : table_.used()) sum += s.reserved;
    const std::uint64_t limit = table_.header.limit;
    return limit > sum ? limit - sum : 0;
  }

  status reclaim_dead_participants() STILLMAP_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < table_.header.used; ++i) {
      quota_slot &s = table_.slots[i];
      if (s == quota_slot() || i == slot_ || file_.is_slot_locked(i)) continue;
      STILLMAP_RETURN_IF_ERROR(file_.write_slot(i, {}));
      s = {};
    }
    return {};
  }

  status take_slot() STILLMAP_REQUIRES(mutex_) {
    for (slot_ = 0; slot_ < max_participants; ++slot_) {
      // A slot is free if its lock can be taken, whatever its last owner left in it.
      if (!file_.try_lock_slot(slot_)) continue;
      if (slot_ >= table_.header.used) {
        table_.header.used = slot_ + 1;
        STILLMAP_RETURN_IF_ERROR(file_.write_header(table_.header));
      }
      STILLMAP_RETURN_IF_ERROR(write_own(0));
      joined_ = true;
      return {};
    }
    return make_error(errc::busy, "the quota has no free slot for a participant", max_participants,
                      max_participants, error_unit::items);
  }

  status write_own(std::uint64_t reserved) STILLMAP_REQUIRES(mutex_) {
    const auto now = quota_slot::of(reserved, process_);
    STILLMAP_RETURN_IF_ERROR(file_.write_slot(slot_, now));
    own_ = now;
    return {};
  }

  // Before the mutex is locked, which a thread of the parent may have held at the fork.
  status check_not_forked() const {
    if (file_.is_open()) return {};
    return make_error(errc::not_supported, "the process is a forked child of the participant");
  }
  static status truncated() {
    return make_error(errc::corrupt,
                      "another process has truncated or overwritten the file that is in use: end "
                      "the participants, remove the quota and create it again");
  }

  const std::string path_;
  const bool only_own_;
  quota_file file_;
  const std::uint32_t process_ = static_cast<std::uint32_t>(getpid());
  mutex mutex_;  // record locks do not exclude threads of one process
  std::size_t slot_ STILLMAP_GUARDED_BY(mutex_) = 0;
  bool joined_ STILLMAP_GUARDED_BY(mutex_) = false;
  quota_slot own_ STILLMAP_GUARDED_BY(mutex_);  // as last written
  quota_table table_ STILLMAP_GUARDED_BY(mutex_);
};

shared_quota::shared_quota(std::unique_ptr<ledger> l) : ledger_(std::move(l)) {}
shared_quota::~shared_quota() = default;

result<std::shared_ptr<shared_quota>> shared_quota::open(const std::string &name,
                                                         std::uint64_t limit) {
  const operation_scope scope("shared_quota::open");
  if (name.empty()) return make_error(errc::invalid_argument, "the name is empty");
  return with_host_memory([&]() -> result<std::shared_ptr<shared_quota>> {
    // All host memory first: a file that is created is kept.
    std::shared_ptr<shared_quota> made(new shared_quota(std::make_unique<ledger>(name)));
    STILLMAP_RETURN_IF_ERROR(made->ledger_->named(made->ledger_->open(limit)));
    return made;
  });
}

status shared_quota::remove(const std::string &name) {
  return with_host_memory("shared_quota::remove", [&]() -> status {
    if (unlink(path_of(name).c_str()) == 0) return {};
    return make_system_error(errno, "the file cannot be deleted", path_of(name));
  });
}

status shared_quota::reserve(std::uint64_t bytes) {
  const operation_scope scope("shared_quota::reserve");
  return ledger_->named(ledger_->reserve(bytes));
}
status shared_quota::release(std::uint64_t bytes) {
  const operation_scope scope("shared_quota::release");
  return ledger_->named(ledger_->release(bytes));
}
status shared_quota::set_limit(std::uint64_t bytes) {
  const operation_scope scope("shared_quota::set_limit");
  return ledger_->named(ledger_->set_limit(bytes));
}
result<quota_stats> shared_quota::stats() {
  return with_host_memory("shared_quota::stats", [&] { return ledger_->named(ledger_->stats()); });
}

}  // namespace stillmap
