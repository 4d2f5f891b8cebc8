#include "hostcuda/src/shared_machine.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "hostcuda/src/machine.h"

namespace hostcuda {
namespace {

constexpr std::size_t kSlots = 256;         // processes
constexpr std::size_t kBuckets = 2048;      // of records, found by their key
constexpr std::size_t kBucketRecords = 32;  // in one bucket
constexpr std::size_t kRecords = kBuckets * kBucketRecords;
constexpr std::uint64_t kMachineMagic = 0x31306863616d6368;  // hcmach01

struct machine_header {
  std::uint64_t magic = 0;
  std::uint64_t memory = 0;  // bytes of each device
  std::uint32_t devices = 0;
  std::uint32_t slots = 0;    // that have ever been taken: none behind them is read
  std::uint64_t records = 0;  // 0: none has ever been written
  // The sum of the records. More where a process died while it changed one.
  std::uint64_t shared[kMaxDevices] = {};
  std::uint64_t unused[29] = {};
};

// A slot and a record lie in one page of the file, so a process that dies while it writes one leaves
// the old one or the new one.
struct machine_slot {
  std::uint32_t process = 0;   // 0: nobody's
  std::uint32_t contexts = 0;  // a bit for each device that it has one on
  std::uint64_t unused = 0;
  struct {
    std::uint64_t charged;
    std::uint64_t shared;  // allocated by this process, and counted by a record
  } device[kMaxDevices] = {};
};

constexpr std::size_t kHolderWords = kSlots / 64;
struct machine_record {
  shared_key key;
  std::uint64_t bytes = 0;
  std::uint32_t device = 0;
  std::uint32_t unused = 0;
  std::uint64_t holders[kHolderWords] = {};  // a bit for each slot

  void set(std::size_t slot) { holders[slot / 64] |= std::uint64_t{1} << slot % 64; }
  bool remove(const machine_record &others) {
    bool any = false;
    for (std::size_t i = 0; i < kHolderWords; ++i) {
      any = any || (holders[i] & others.holders[i]) != 0;
      holders[i] &= ~others.holders[i];
    }
    return any;
  }
  bool is_held() const {
    return std::any_of(std::begin(holders), std::end(holders), [](auto w) { return w != 0; });
  }
};

static_assert(sizeof(machine_header) == 512 && sizeof(machine_slot) == 512 &&
              sizeof(machine_record) == 64);

struct machine_table {
  machine_header header;
  machine_slot slots[kSlots];
};

// One process's use of the file. The functions that return bool return false, with errno set, if a
// system call fails or the file is not a machine's.
class machine_ledger {
 public:
  machine_ledger() = default;
  machine_ledger(const machine_ledger &) = delete;
  // Unlocks: a child that another thread has forked meanwhile may have a copy of the descriptor.
  ~machine_ledger() {
    if (fd_ >= 0) (void)set_lock(F_OFD_SETLK, F_UNLCK, 0, 0);
    close_file();
  }

  // Opens the file and locks the ledger. Without `create`: fails if there is none.
  bool open(const std::string &name, bool create) {
    path_ = "/dev/shm/hostcuda." + std::to_string(geteuid()) + "." + name;
    for (;;) {
      // O_NONBLOCK: what has the name may be a FIFO.
      fd_ = ::open(path_.c_str(),
                   O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0), 0600);
      struct stat st {};
      if (fd_ < 0 || fstat(fd_, &st) != 0) return false;
      if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
          (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        errno = EPERM;
        return false;
      }
      if (!lock() || fstat(fd_, &st) != 0) return false;
      if (st.st_nlink != 0) return true;
      close_file();  // the last process has deleted it meanwhile
    }
  }
  void close_file() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  // Requires: no process takes part.
  bool create(const profile &machine) {
    if (ftruncate(fd_, 0) != 0) return false;
    // With its blocks, so that no later write finds the file system full.
    errno = posix_fallocate(fd_, 0, sizeof(machine_table));
    if (errno != 0) return false;
    table_.header = {};
    table_.header.magic = kMachineMagic;
    table_.header.memory = machine.device_memory;
    table_.header.devices = static_cast<std::uint32_t>(machine.device_count);
    return write_header();
  }

  // Takes a slot. Sets errno to EUSERS if there is none.
  bool take_slot() {
    if (!settle()) return false;
    std::size_t i = 0;
    while (i < kSlots && !try_lock(1 + i)) ++i;
    if (i == kSlots) {
      errno = EUSERS;
      return false;
    }
    if (i >= table_.header.slots) {
      table_.header.slots = static_cast<std::uint32_t>(i + 1);
      if (!write_header()) return false;
    }
    own_ = i;
    own() = {};
    own().process = static_cast<std::uint32_t>(getpid());
    return write_slot(own_);
  }

  // *fits: whether the limit permits it. Otherwise nothing changes.
  bool charge(int device, std::size_t bytes, std::size_t limit, bool *fits) {
    if (!read() || !make_room(device, bytes, limit, fits)) return false;
    if (!*fits) return true;
    own().device[device].charged += bytes;
    return write_slot(own_);
  }

  bool uncharge(int device, std::size_t bytes) {
    own().device[device].charged -= bytes;
    return write_slot(own_);
  }

  // Whatever this function and the next one have written when the process dies, the sum in the header
  // is not too small; settle() then makes it right. `charged`: this process is charged with the bytes.
  // *fits: as for charge(); also false if there is no room for a record.
  bool hold(const shared_piece &what, int device, bool charged, std::size_t limit, bool *fits) {
    *fits = true;
    if (const auto it = held_.find(what.key); it != held_.end()) {
      ++it->second;
      return true;
    }
    if (!read() || (!charged && !make_room(device, what.bytes, limit, fits))) return false;
    const std::size_t first = bucket_of(what.key);
    machine_record bucket[kBucketRecords];
    if (!read_records(bucket, first, kBucketRecords)) return false;
    machine_record *r = find(bucket, what.key);
    const bool is_new = r == nullptr;
    if (is_new) {
      r = find(bucket, shared_key{});
      *fits = *fits && r != nullptr;
      if (!*fits) return true;
      r->key = what.key;
      r->bytes = what.bytes;
      r->device = static_cast<std::uint32_t>(device);
      table_.header.records = 1;
      table_.header.shared[device] += what.bytes;
      if (!write_header()) return false;
    }
    *fits = true;  // what somebody holds needs no room
    r->set(own_);
    if (!write_record(*r, first + static_cast<std::size_t>(r - bucket))) {
      if (is_new) {
        table_.header.shared[device] -= what.bytes;
        (void)write_header();
      }
      return false;
    }
    held_.emplace(what.key, 1);
    if (!charged) return true;
    own().device[device].charged -= what.bytes;
    own().device[device].shared += what.bytes;
    return write_slot(own_);
  }

  bool drop(const shared_key &key, int device, std::size_t bytes) {
    if (!read()) return false;
    if (bytes != 0) {
      own().device[device].shared -= bytes;
      if (!write_slot(own_)) return false;
    }
    const auto it = held_.find(key);
    if (it == held_.end() || --it->second != 0) return true;
    held_.erase(it);
    const std::size_t first = bucket_of(key);
    machine_record bucket[kBucketRecords];
    if (!read_records(bucket, first, kBucketRecords)) return false;
    machine_record *const r = find(bucket, key);
    if (r == nullptr) return true;
    machine_record self;
    self.set(own_);
    r->remove(self);
    const bool last = !r->is_held();
    if (last) {
      table_.header.shared[device] -= r->bytes;
      *r = {};
    }
    return write_record(*r, first + static_cast<std::size_t>(r - bucket)) &&
           (!last || write_header());
  }

  bool set_contexts(std::uint32_t mask) {
    if (own().contexts == mask) return true;
    own().contexts = mask;
    return write_slot(own_);
  }

  // Deletes the file if this process is the last one.
  void remove_if_alone() const {
    struct stat st {};
    if (!is_locked(1, kSlots) && fstat(fd_, &st) == 0 && st.st_nlink != 0) unlink(path_.c_str());
  }

  // Reads the header and the slots.
  bool read() {
    if (!read_bytes(&table_, slot_at(known_), 0)) return false;
    const machine_header &h = table_.header;
    if (h.magic != kMachineMagic || h.slots > kSlots) {
      errno = EINVAL;
      return false;
    }
    if (h.slots <= known_) return true;
    const std::size_t before = std::exchange(known_, h.slots);
    return read_bytes(&table_.slots[before], slot_at(known_) - slot_at(before), slot_at(before));
  }

  // Takes back what dead processes hold. Requires read().
  bool settle() {
    machine_record dead;
    for (std::size_t i = 0; i < table_.header.slots; ++i)
      if (i != own_ && table_.slots[i].process != 0 && !is_locked(1 + i, 1)) dead.set(i);
    if (!dead.is_held()) return true;
    if (table_.header.records != 0 && !forget_holders(dead)) return false;
    // The slots last: until then, the next process does all of this again.
    for (std::size_t i = 0; i < table_.header.slots; ++i) {
      if ((dead.holders[i / 64] >> i % 64 & 1U) == 0) continue;
      table_.slots[i] = {};
      if (!write_slot(i)) return false;
    }
    return true;
  }

  std::size_t used(int device) const {
    std::size_t sum = table_.header.shared[device];
    for (std::size_t i = 0; i < table_.header.slots; ++i)
      sum += table_.slots[i].device[device].charged;
    return sum;
  }
  std::size_t used_by_others(int device) const {
    if (own_ == kSlots) return used(device);
    const auto &mine = table_.slots[own_].device[device];
    const std::size_t all = used(device), own = mine.charged + mine.shared;
    return all > own ? all - own : 0;
  }
  const machine_table &table() const { return table_; }
  bool has_processes() const { return is_locked(1, kSlots); }
  const std::string &path() const { return path_; }

  bool lock() const { return set_lock(F_OFD_SETLKW, F_WRLCK, 0); }
  bool try_lock(std::size_t at) const { return set_lock(F_OFD_SETLK, F_WRLCK, at); }
  void unlock() const { (void)set_lock(F_OFD_SETLK, F_UNLCK, 0); }

 private:
  static struct flock record_lock(int type, std::size_t at, std::size_t bytes) {
    struct flock l {};
    l.l_type = static_cast<short>(type);
    l.l_whence = SEEK_SET;
    l.l_start = static_cast<off_t>(at);
    l.l_len = static_cast<off_t>(bytes);
    return l;
  }
  // Byte 0 is the lock of the ledger, byte 1 + i that of slot i.
  bool set_lock(int command, int type, std::size_t at, std::size_t bytes = 1) const {
    struct flock l = record_lock(type, at, bytes);
    while (fcntl(fd_, command, &l) != 0)
      if (errno != EINTR) return false;
    return true;
  }
  bool is_locked(std::size_t at, std::size_t bytes) const {
    struct flock l = record_lock(F_WRLCK, at, bytes);
    return fcntl(fd_, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
  }

  static constexpr std::size_t slot_at(std::size_t i) {
    return sizeof(machine_header) + i * sizeof(machine_slot);
  }
  static constexpr std::size_t record_at(std::size_t i) {
    return sizeof(machine_table) + i * sizeof(machine_record);
  }
  static std::size_t bucket_of(const shared_key &key) {
    const std::uint64_t mixed = (key.file * 31 + key.piece) * 0x9e3779b97f4a7c15;
    return (mixed >> 32) % kBuckets * kBucketRecords;
  }
  static machine_record *find(machine_record *bucket, const shared_key &key) {
    machine_record *const end = bucket + kBucketRecords;
    machine_record *const r =
        std::find_if(bucket, end, [&](const machine_record &each) { return each.key == key; });
    return r == end ? nullptr : r;
  }

  bool read_bytes(void *into, std::size_t bytes, std::size_t at) const {
    const ssize_t n = pread(fd_, into, bytes, static_cast<off_t>(at));
    if (n >= 0 && n < static_cast<ssize_t>(bytes)) errno = EINVAL;  // somebody has truncated it
    return n == static_cast<ssize_t>(bytes);
  }
  bool write_bytes(const void *from, std::size_t bytes, std::size_t at) const {
    return pwrite(fd_, from, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
  }
  bool write_header() const { return write_bytes(&table_.header, sizeof table_.header, 0); }
  bool write_slot(std::size_t i) const {
    return write_bytes(&table_.slots[i], sizeof table_.slots[i], slot_at(i));
  }
  bool write_record(const machine_record &r, std::size_t i) const {
    return write_bytes(&r, sizeof r, record_at(i));
  }
  // Records behind the end of the file are empty.
  bool read_records(machine_record *into, std::size_t first, std::size_t count) const {
    std::fill(into, into + count, machine_record{});
    return pread(fd_, into, count * sizeof *into, static_cast<off_t>(record_at(first))) >= 0;
  }

  // Removes holders from all records, and sums up those that are left.
  bool forget_holders(const machine_record &dead) {
    std::uint64_t sums[kMaxDevices] = {};
    constexpr std::size_t kStep = 1024;
    const auto records = std::make_unique<machine_record[]>(kStep);
    for (std::size_t first = 0; first < kRecords; first += kStep) {
      if (!read_records(records.get(), first, kStep)) return false;
      for (std::size_t i = 0; i < kStep; ++i) {
        machine_record &r = records[i];
        if (r.key.file == 0) continue;
        const bool changed = r.remove(dead);
        if (!r.is_held()) r = {};
        if (changed && !write_record(r, first + i)) return false;
        if (r.key.file != 0 && r.device < kMaxDevices) sums[r.device] += r.bytes;
      }
    }
    std::copy(std::begin(sums), std::end(sums), table_.header.shared);
    return write_header();
  }

  machine_slot &own() { return table_.slots[own_]; }
  bool has_room(int device, std::size_t bytes, std::size_t limit) const {
    const std::size_t now = used(device);
    return now <= limit && bytes <= limit - now;
  }
  bool make_room(int device, std::size_t bytes, std::size_t limit, bool *fits) {
    *fits = has_room(device, bytes, limit);
    if (*fits) return true;
    if (!settle()) return false;
    *fits = has_room(device, bytes, limit);
    return true;
  }

  std::string path_;
  int fd_ = -1;
  std::size_t own_ = kSlots;                  // kSlots: takes no part
  std::size_t known_ = 1;                     // slots that read() reads at once
  std::map<shared_key, std::uint64_t> held_;  // how often
  machine_table table_;
};

// What this process takes part in.
struct machine_membership {
  std::mutex mutex;
  std::unique_ptr<machine_ledger> ledger;
  int contexts[kMaxDevices] = {};
};

// Never destroyed, because destructors of the program may call the driver.
machine_membership &membership() {
  static machine_membership *const m = new machine_membership;
  return *m;
}

// A forked child has no part in the machine. Its copy of the descriptor would keep the lock of the slot
// when the parent has died.
void leave_in_children() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { membership().mutex.lock(); }, [] { membership().mutex.unlock(); },
                   [] {
                     joined_machine = false;
                     if (membership().ledger != nullptr) membership().ledger->close_file();
                     membership().mutex.unlock();
                   });
  });
}

// Errors are not expected: somebody has spoilt the file.
bool report_machine_error(const machine_ledger &ledger) {
  static std::atomic<bool> reported{false};
  if (!reported.exchange(true))
    std::fprintf(stderr, "hostcuda: the ledger of the machine, %s, cannot be used: %s\n",
                 ledger.path().c_str(), std::strerror(errno));
  return false;
}

// Calls change(ledger) with the ledger locked.
template <class Change>
bool with_ledger(const Change &change) {
  const std::lock_guard<std::mutex> threads(membership().mutex);
  machine_ledger &ledger = *membership().ledger;
  if (!ledger.lock()) return report_machine_error(ledger);
  const bool done = change(ledger) || report_machine_error(ledger);
  ledger.unlock();
  return done;
}

// Calls look(ledger) with the ledger read, without those that have died.
template <class Look>
void look_at_machine(const Look &look) {
  const std::string &name = current_settings().machine_name;
  if (name.empty()) return;
  if (in_machine()) {
    with_ledger([&](machine_ledger &l) { return l.read() && l.settle() && (look(l), true); });
    return;
  }
  const auto l = std::make_unique<machine_ledger>();
  if (l->open(name, false) && l->read() && l->settle()) look(*l);
}

std::string devices_of(std::uint64_t count, std::uint64_t memory) {
  return std::to_string(count) + (count == 1 ? " device of " : " devices of ") +
         std::to_string(memory) + " bytes";
}

CUresult cannot_join(const std::string &name, const std::string &reason, CUresult code) {
  std::fprintf(stderr, "hostcuda: cuInit: machine=%s: %s\n", name.c_str(), reason.c_str());
  return code;
}

// Runs when the process exits, which may wait for nobody.
__attribute__((destructor)) void end_membership() {
  if (!in_machine()) return;
  const std::unique_lock<std::mutex> threads(membership().mutex, std::try_to_lock);
  if (!threads.owns_lock() || !membership().ledger->try_lock(0)) return;
  membership().ledger->remove_if_alone();
  membership().ledger->unlock();
}

}  // namespace

CUresult join_machine() {
  const settings &now = current_settings();
  const std::string &name = now.machine_name;
  if (name.empty()) return CUDA_SUCCESS;
  leave_in_children();
  machine_membership &m = membership();
  const std::lock_guard<std::mutex> threads(m.mutex);
  if (in_machine()) return CUDA_SUCCESS;
  auto ledger = std::make_unique<machine_ledger>();
  const auto failed = [&] {
    const std::string reason = std::strerror(errno);
    return cannot_join(name, ledger->path() + " cannot be used: " + reason,
                       CUDA_ERROR_OPERATING_SYSTEM);
  };
  if (!ledger->open(name, true)) return failed();
  // What dead processes have left counts as nothing.
  if (!ledger->has_processes() && !ledger->create(now.machine)) return failed();
  if (!ledger->read()) return failed();
  const machine_header &has = ledger->table().header;
  const auto devices = static_cast<std::uint32_t>(now.machine.device_count);
  if (has.devices != devices || has.memory != now.machine.device_memory)
    return cannot_join(name,
                       "it has " + devices_of(has.devices, has.memory) + ", and this process " +
                           devices_of(devices, now.machine.device_memory) +
                           ": give all its processes the same profile= and memory=",
                       CUDA_ERROR_INVALID_VALUE);
  if (!ledger->take_slot()) {
    if (errno != EUSERS) return failed();
    return cannot_join(name, "it has " + std::to_string(kSlots) + " processes, which is the limit",
                       CUDA_ERROR_INVALID_VALUE);
  }
  ledger->unlock();
  m.ledger = std::move(ledger);
  std::fill(std::begin(m.contexts), std::end(m.contexts), 0);
  joined_machine.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

void leave_machine() {
  if (!in_machine()) return;
  with_ledger([](const machine_ledger &l) {
    l.remove_if_alone();
    return true;
  });
  const std::lock_guard<std::mutex> threads(membership().mutex);
  joined_machine = false;
  membership().ledger.reset();  // the slot without its lock is as that of a dead process
}

bool charge_machine(int device, std::size_t bytes, std::size_t limit) {
  bool fits = false;
  return with_ledger([&](machine_ledger &l) { return l.charge(device, bytes, limit, &fits); }) &&
         fits;
}

void uncharge_machine(int device, std::size_t bytes) {
  with_ledger([&](machine_ledger &l) { return l.uncharge(device, bytes); });
}

bool share_in_machine(const shared_piece &what, int device) {
  bool fits = false;
  return with_ledger([&](machine_ledger &l) { return l.hold(what, device, true, 0, &fits); }) &&
         fits;
}

bool hold_in_machine(const shared_piece &what, int device, std::size_t limit) {
  bool fits = false;
  return with_ledger(
             [&](machine_ledger &l) { return l.hold(what, device, false, limit, &fits); }) &&
         fits;
}

void drop_in_machine(const shared_key &key, int device, std::size_t own) {
  with_ledger([&](machine_ledger &l) { return l.drop(key, device, own); });
}

void count_machine_context(int device, int by) {
  if (!in_machine()) return;
  with_ledger([&](machine_ledger &l) {
    int(&contexts)[kMaxDevices] = membership().contexts;
    contexts[device] += by;
    std::uint32_t mask = 0;
    for (int i = 0; i < kMaxDevices; ++i) mask |= contexts[i] > 0 ? std::uint32_t{1} << i : 0;
    return l.set_contexts(mask);
  });
}

std::size_t bytes_of_others(int device) {
  std::size_t out = 0;
  look_at_machine([&](const machine_ledger &l) { out = l.used_by_others(device); });
  return out;
}

std::vector<machine_process> machine_processes(int device) {
  std::vector<machine_process> out;
  look_at_machine([&](const machine_ledger &l) {
    const machine_table &t = l.table();
    for (std::size_t i = 0; i < t.header.slots; ++i) {
      const machine_slot &s = t.slots[i];
      if ((s.contexts >> device & 1U) == 0) continue;
      out.push_back({s.process, s.device[device].charged + s.device[device].shared});
    }
  });
  return out;
}

}  // namespace hostcuda
