#include "stillmap/allocators/shared_quota.h"

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
namespace {

constexpr std::uint64_t kMagic = 0x31544f55514d5453;  // "STMQUOT1"

// Every field is one aligned word written at once, so that whoever dies leaves the old state or the
// new one. There is no sum to go wrong: it is added up from the slots.
struct slot {
  std::atomic<std::uint64_t> reserved;
  std::atomic<std::uint32_t> process;
  std::uint32_t unused;
};
struct ledger_file {
  std::atomic<std::uint64_t> magic;  // written last
  std::atomic<std::uint64_t> limit;
  slot slots[shared_quota::max_participants];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Locks are on bytes of the file: byte 0 for the books, byte 1 + i for the life of participant i.
// They belong to the open file, not to a thread, and the kernel drops them when a process dies.
struct flock byte_lock(short type, off_t at) {
  struct flock l = {};
  l.l_type = type;
  l.l_whence = SEEK_SET;
  l.l_start = at;
  l.l_len = 1;
  return l;
}

tl::unexpected<error> system_error(const char *operation, const char *reason) {
  return tl::unexpected<error>(
      error{std::error_code(errno, std::system_category()), operation, reason});
}

std::string path_of(const std::string &name) {
  return name.find('/') == std::string::npos ? "/dev/shm/" + name : name;
}

}  // namespace

class shared_quota::ledger {
 public:
  explicit ledger(int fd) : fd_(fd) { open_files().add(this); }
  ~ledger() {
    if (file_ != nullptr && alive()) {
      if (own_ != nullptr) own_->reserved.store(0);
      munmap(file_, sizeof *file_);
    }
    open_files().remove(this);
    if (fd_ >= 0) close(fd_);
  }

  status join(std::uint64_t limit) {
    constexpr const char *op = "shared_quota::open";
    const holding books(*this);
    if (!books) return system_error(op, "the file cannot be locked");
    struct stat st = {};
    if (fstat(fd_, &st) != 0) return system_error(op, "the file cannot be looked at");
    // Really there: writing to a page that shared memory has no room for would be a bus error.
    if (st.st_size == 0 && (errno = posix_fallocate(fd_, 0, sizeof(ledger_file))) != 0) {
      return system_error(op, "there is no room for the ledger");
    }
    if (st.st_size != 0 && st.st_size != sizeof(ledger_file)) {
      return make_error(errc::corrupt, op, "the file is no quota", st.st_size, sizeof(ledger_file));
    }
    void *const at = mmap(nullptr, sizeof(ledger_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (at == MAP_FAILED) return system_error(op, "the file cannot be mapped");
    file_ = static_cast<ledger_file *>(at);
    // A child's mapping would keep the file open, and with it this participant's life.
    if (madvise(at, sizeof(ledger_file), MADV_DONTFORK) != 0) {
      return system_error(op, "the mapping cannot be kept from children");
    }
    const std::uint64_t magic = file_->magic;
    if (magic != 0 && magic != kMagic) {
      return make_error(errc::corrupt, op, "the file is no quota");
    }
    if (magic == 0) {  // new, or its maker died before it was done
      if (limit == 0) {
        return make_error(errc::invalid_argument, op, "there is no such quota, and no limit");
      }
      file_->limit = limit;
      file_->magic = kMagic;
    }
    if (limit != 0 && file_->limit != limit) {
      return make_error(errc::invalid_argument, op, "the quota has another limit", limit,
                        file_->limit);
    }
    return take_slot();
  }

  status reserve(std::uint64_t bytes) {
    constexpr const char *op = "shared_quota::reserve";
    const std::lock_guard threads(mutex_);
    if (!alive()) return forked(op);
    const holding books(*this);
    if (!books) return system_error(op, "the ledger cannot be locked");
    std::uint64_t left = room();
    if (left < bytes && bury_the_dead()) left = room();
    if (left < bytes) {
      return make_error(errc::out_of_memory, op, "the quota is used up", bytes, left);
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
      return make_error(errc::invalid_argument, op, "more than was reserved", bytes, held);
    }
    own_->reserved.store(held - bytes);  // nobody else writes it while this one lives
    return {};
  }

  status set_limit(std::uint64_t bytes) {
    constexpr const char *op = "shared_quota::set_limit";
    if (bytes == 0) return make_error(errc::invalid_argument, op, "a limit of nothing");
    const std::lock_guard threads(mutex_);
    if (!alive()) return forked(op);
    const holding books(*this);
    if (!books) return system_error(op, "the ledger cannot be locked");
    file_->limit = bytes;
    return {};
  }

  result<quota_stats> stats() {
    constexpr const char *op = "shared_quota::stats";
    const std::lock_guard threads(mutex_);
    if (!alive()) return tl::unexpected(forked(op).error());
    const holding books(*this);
    if (!books) return system_error(op, "the ledger cannot be locked");
    bury_the_dead();
    quota_stats out;
    out.limit = file_->limit;
    out.own = own_->reserved;
    for (const slot &s : file_->slots) {
      if (s.process == 0) continue;
      out.reserved += s.reserved;
      out.participants.push_back({s.process, s.reserved});
    }
    return out;
  }

 private:
  // A child must not keep its parent's files open: the parent's locks would outlive it.
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
    static open_ledgers *const all = new open_ledgers;  // the handlers are there to the end
    return *all;
  }

  // The books, for as long as it lives.
  class holding {
   public:
    explicit holding(const ledger &l) : ledger_(l), ok_(l.lock(F_OFD_SETLKW, F_WRLCK, 0)) {}
    ~holding() {
      if (ok_) ledger_.lock(F_OFD_SETLK, F_UNLCK, 0);
    }
    holding(const holding &) = delete;
    explicit operator bool() const { return ok_; }

   private:
    const ledger &ledger_;
    const bool ok_;
  };

  bool lock(int command, short type, off_t at) const {
    struct flock l = byte_lock(type, at);
    int r = 0;
    do {
      r = fcntl(fd_, command, &l);
    } while (r != 0 && errno == EINTR);
    return r == 0;
  }

  // All below require the books.

  std::uint64_t room() const {
    std::uint64_t sum = 0;
    for (const slot &s : file_->slots) sum += s.reserved;
    const std::uint64_t limit = file_->limit;
    return limit > sum ? limit - sum : 0;
  }

  bool lives(std::size_t i) const {
    struct flock l = byte_lock(F_WRLCK, static_cast<off_t>(1 + i));
    return fcntl(fd_, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
  }

  // True: it made room.
  bool bury_the_dead() const {
    bool made_room = false;
    for (std::size_t i = 0; i < max_participants; ++i) {
      slot &s = file_->slots[i];
      if (s.process == 0 || &s == own_ || lives(i)) continue;
      made_room = s.reserved.exchange(0) != 0 || made_room;
      s.process = 0;
    }
    return made_room;
  }

  status take_slot() {
    constexpr const char *op = "shared_quota::open";
    for (std::size_t i = 0; i < max_participants; ++i) {
      // A slot is free when nobody's life is locked in it, whatever its last owner left there.
      if (!lock(F_OFD_SETLK, F_WRLCK, static_cast<off_t>(1 + i))) continue;
      own_ = &file_->slots[i];
      own_->reserved = 0;
      own_->process = static_cast<std::uint32_t>(getpid());
      return {};
    }
    return make_error(errc::busy, op, "all places are taken", max_participants, max_participants);
  }

  bool alive() const { return process_ == getpid(); }
  static status forked(const char *op) {
    return make_error(errc::not_supported, op, "this process is a fork of the participant");
  }

  int fd_;  // -1 in a child
  ledger_file *file_ = nullptr;
  slot *own_ = nullptr;
  const pid_t process_ = getpid();
  std::mutex mutex_;  // the file's locks do not tell threads apart
};

shared_quota::shared_quota(std::unique_ptr<ledger> l) : ledger_(std::move(l)) {}
shared_quota::~shared_quota() = default;

result<std::shared_ptr<shared_quota>> shared_quota::open(const std::string &name,
                                                         std::uint64_t limit) {
  constexpr const char *op = "shared_quota::open";
  if (name.empty()) return make_error(errc::invalid_argument, op, "there is no name");
  const int fd = ::open(path_of(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return system_error(op, "the file cannot be opened");
  auto joined = std::make_unique<ledger>(fd);
  if (status s = joined->join(limit); !s) return tl::unexpected(s.error());
  return std::shared_ptr<shared_quota>(new shared_quota(std::move(joined)));
}

status shared_quota::remove(const std::string &name) {
  if (unlink(path_of(name).c_str()) == 0) return {};
  return system_error("shared_quota::remove", "the file cannot be deleted");
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
  return ledger_->stats();
}

}  // namespace stillmap
