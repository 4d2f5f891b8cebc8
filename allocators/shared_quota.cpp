#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/internal/host_memory.h"
#include "stillmap/vmm/internal/try.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>
#include <utility>

namespace stillmap {

// Each field is one aligned word that is written at once, so a participant that dies leaves the old
// state or the new one. The sum is not stored; it is computed from the slots.
struct quota_slot {
  std::atomic<std::uint64_t> reserved;
  std::atomic<std::uint32_t> process;
  std::uint32_t unused;
};
struct quota_file {
  std::atomic<std::uint64_t> magic;  // written last
  std::atomic<std::uint64_t> limit;
  quota_slot slots[shared_quota::max_participants];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

constexpr std::uint64_t kMagic = 0x31544f55514d5453;  // "STMQUOT1"

// Record locks on the file: byte 0 guards the ledger, byte 1 + i is held by participant i while it
// lives. They belong to the open file description, and the kernel drops them when the process dies.
struct flock byte_lock(short type, off_t at) {
  struct flock l = {};
  l.l_type = type;
  l.l_whence = SEEK_SET;
  l.l_start = at;
  l.l_len = 1;
  return l;
}

tl::unexpected<error> system_error(const char *operation, const char *reason) {
  return make_system_error(errno, operation, reason);
}

std::string path_of(const std::string &name) {
  return name.find('/') == std::string::npos ? "/dev/shm/" + name : name;
}

}  // namespace

class shared_quota::ledger {
 public:
  ledger() { open_files().add(this); }
  ~ledger() {
    if (file_ != nullptr && alive()) {
      if (own_ != nullptr) own_->reserved.store(0);
      munmap(file_, sizeof *file_);
    }
    open_files().remove(this);
    if (fd_ >= 0) close(fd_);
  }

  status open(const char *path, std::uint64_t limit) {
    fd_ = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return fd_ >= 0 ? join(limit) : system_error("shared_quota::open", "the file cannot be opened");
  }

  status join(std::uint64_t limit) {
    constexpr const char *op = "shared_quota::open";
    const ledger_lock locked(*this);
    if (!locked) return system_error(op, "the file cannot be locked");
    struct stat st = {};
    if (fstat(fd_, &st) != 0) return system_error(op, "the file's size cannot be read");
    // Allocates the blocks: a write to a page without shared memory behind it raises SIGBUS.
    if (st.st_size == 0 && (errno = posix_fallocate(fd_, 0, sizeof(quota_file))) != 0) {
      return system_error(op, "there is no room for the ledger");
    }
    if (st.st_size != 0 && st.st_size != sizeof(quota_file)) {
      return make_error(errc::corrupt, op, "the file is not a quota", st.st_size,
                        sizeof(quota_file), error_unit::bytes);
    }
    void *const at = mmap(nullptr, sizeof(quota_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (at == MAP_FAILED) return system_error(op, "the file cannot be mapped");
    file_ = static_cast<quota_file *>(at);
    // A child's mapping would keep the file open, and with it this participant's lock.
    if (madvise(at, sizeof(quota_file), MADV_DONTFORK) != 0) {
      return system_error(op, "the mapping cannot be excluded from forked children");
    }
    const std::uint64_t magic = file_->magic;
    if (magic != 0 && magic != kMagic) {
      return make_error(errc::corrupt, op, "the file is not a quota");
    }
    if (magic == 0) {  // new, or its creator died before it finished
      if (limit == 0) {
        return make_error(errc::invalid_argument, op,
                          "the quota does not exist, and no limit was given to create it");
      }
      file_->limit = limit;
      file_->magic = kMagic;
    }
    if (limit != 0 && file_->limit != limit) {
      return make_error(errc::invalid_argument, op, "the quota exists with another limit", limit,
                        file_->limit, error_unit::bytes);
    }
    return take_slot();
  }

  status reserve(std::uint64_t bytes) {
    constexpr const char *op = "shared_quota::reserve";
    const std::lock_guard threads(mutex_);
    if (!alive()) return forked(op);
    const ledger_lock locked(*this);
    if (!locked) return system_error(op, "the ledger cannot be locked");
    std::uint64_t left = room();
    if (left < bytes && reclaim_dead_participants()) left = room();
    if (left < bytes) {
      return make_error(errc::out_of_memory, op, "the request exceeds the bytes left in the quota",
                        bytes, left, error_unit::bytes);
    }
    own_->reserved.fetch_add(bytes);
    return {};
  }

  status release(std::uint64_t bytes) {
    constexpr const char *op = "shared_quota::release";
    const std::lock_guard threads(mutex_);
    if (!alive()) return forked(op);
    const std::uint64_t held = own_->reserved;
    if (bytes > held) {
      return make_error(errc::invalid_argument, op,
                        "the bytes exceed this participant's reservation", bytes, held,
                        error_unit::bytes);
    }
    own_->reserved.store(held - bytes);  // no other process writes it while this one lives
    return {};
  }

  status set_limit(std::uint64_t bytes) {
    constexpr const char *op = "shared_quota::set_limit";
    if (bytes == 0) return make_error(errc::invalid_argument, op, "the limit must not be 0");
    const std::lock_guard threads(mutex_);
    if (!alive()) return forked(op);
    const ledger_lock locked(*this);
    if (!locked) return system_error(op, "the ledger cannot be locked");
    file_->limit = bytes;
    return {};
  }

  result<quota_stats> stats() {
    constexpr const char *op = "shared_quota::stats";
    const std::lock_guard threads(mutex_);
    if (!alive()) return tl::unexpected(forked(op).error());
    const ledger_lock locked(*this);
    if (!locked) return system_error(op, "the ledger cannot be locked");
    reclaim_dead_participants();
    quota_stats out;
    out.limit = file_->limit;
    out.own = own_->reserved;
    for (const quota_slot &s : file_->slots) {
      if (s.process == 0) continue;
      out.reserved += s.reserved;
      out.participants.push_back({s.process, s.reserved});
    }
    return out;
  }

 private:
  // Closes the files in a forked child, where they would keep the parent's locks alive.
  class open_ledgers {
   public:
    open_ledgers() { pthread_atfork(lock, unlock, close_all); }
    void add(ledger *l) {
      const std::lock_guard guard(mutex_);
      all_.insert(l);
    }
    void remove(ledger *l) {
      const std::lock_guard guard(mutex_);
      all_.erase(l);
    }

   private:
    static void lock() { open_files().mutex_.lock(); }
    static void unlock() { open_files().mutex_.unlock(); }
    static void close_all() {
      for (ledger *l : open_files().all_) close(std::exchange(l->fd_, -1));
      unlock();
    }
    std::mutex mutex_;
    std::set<ledger *> all_;
  };
  static open_ledgers &open_files() {
    static open_ledgers *const all = new open_ledgers;  // never destroyed: fork handlers use it
    return *all;
  }

  // Holds the lock on the ledger.
  class ledger_lock {
   public:
    explicit ledger_lock(const ledger &l) : ledger_(l), ok_(l.lock(F_OFD_SETLKW, F_WRLCK, 0)) {}
    ~ledger_lock() {
      if (ok_) ledger_.lock(F_OFD_SETLK, F_UNLCK, 0);
    }
    ledger_lock(const ledger_lock &) = delete;
    explicit operator bool() const { return ok_; }

   private:
    const ledger &ledger_;
    const bool ok_;
  };

  bool lock(int command, short type, off_t at) const {
    struct flock l = byte_lock(type, at);
    while (fcntl(fd_, command, &l) != 0) {
      if (errno != EINTR) return false;
    }
    return true;
  }

  // The functions below require the lock on the ledger.

  std::uint64_t room() const {
    std::uint64_t sum = 0;
    for (const quota_slot &s : file_->slots) sum += s.reserved;
    const std::uint64_t limit = file_->limit;
    return limit > sum ? limit - sum : 0;
  }

  bool is_alive(std::size_t i) const {
    struct flock l = byte_lock(F_WRLCK, static_cast<off_t>(1 + i));
    return fcntl(fd_, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
  }

  // Releases the reservations of dead participants. True: there were any.
  bool reclaim_dead_participants() const {
    bool made_room = false;
    for (std::size_t i = 0; i < max_participants; ++i) {
      quota_slot &s = file_->slots[i];
      if (s.process == 0 || &s == own_ || is_alive(i)) continue;
      made_room = s.reserved.exchange(0) != 0 || made_room;
      s.process = 0;
    }
    return made_room;
  }

  status take_slot() {
    constexpr const char *op = "shared_quota::open";
    for (std::size_t i = 0; i < max_participants; ++i) {
      // A slot is free if its lock can be taken, whatever its last owner left in it.
      if (!lock(F_OFD_SETLK, F_WRLCK, static_cast<off_t>(1 + i))) continue;
      own_ = &file_->slots[i];
      own_->reserved = 0;
      own_->process = static_cast<std::uint32_t>(getpid());
      return {};
    }
    return make_error(errc::busy, op, "the quota has no free slot for a participant",
                      max_participants, max_participants, error_unit::items);
  }

  bool alive() const { return process_ == getpid(); }
  static status forked(const char *op) {
    return make_error(errc::not_supported, op, "the process is a forked child of the participant");
  }

  int fd_ = -1;  // -1 in a child, too
  quota_file *file_ = nullptr;
  quota_slot *own_ = nullptr;
  const pid_t process_ = getpid();
  std::mutex mutex_;  // record locks do not exclude threads of one process
};

shared_quota::shared_quota(std::unique_ptr<ledger> l) : ledger_(std::move(l)) {}
shared_quota::~shared_quota() = default;

result<std::shared_ptr<shared_quota>> shared_quota::open(const std::string &name,
                                                         std::uint64_t limit) {
  constexpr const char *op = "shared_quota::open";
  if (name.empty()) return make_error(errc::invalid_argument, op, "the name is empty");
  return with_host_memory(op, [&]() -> result<std::shared_ptr<shared_quota>> {
    // All host memory first: a file that is created is kept.
    const std::string path = path_of(name);
    std::shared_ptr<shared_quota> made(new shared_quota(std::make_unique<ledger>()));
    STILLMAP_RETURN_IF_ERROR(made->ledger_->open(path.c_str(), limit));
    return made;
  });
}

status shared_quota::remove(const std::string &name) {
  constexpr const char *op = "shared_quota::remove";
  return with_host_memory(op, [&]() -> status {
    if (unlink(path_of(name).c_str()) == 0) return {};
    return system_error(op, "the file cannot be deleted");
  });
}

status shared_quota::reserve(std::uint64_t bytes) {
  return ledger_->reserve(bytes);
}
status shared_quota::release(std::uint64_t bytes) {
  return ledger_->release(bytes);
}
status shared_quota::set_limit(std::uint64_t bytes) {
  return ledger_->set_limit(bytes);
}
result<quota_stats> shared_quota::stats() {
  return with_host_memory("shared_quota::stats", [&] { return ledger_->stats(); });
}

}  // namespace stillmap
