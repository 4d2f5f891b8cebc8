#include "stillmap/allocators/admission/quota_ledger.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

#include "stillmap/allocators/admission/quota_bell.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap {
namespace {

bool is_bare(const std::string &name) {
  return name.find('/') == std::string::npos;
}

}  // namespace

quota_ledger::quota_ledger(const std::string &name)
    : path_(is_bare(name) ? "/dev/shm/" + name : name), only_own_(is_bare(name)) {}

// A stopped process keeps its locks, and no wait for one has a timeout: tries again and again. Lets
// go of the mutex meanwhile, so that threads that release wait for nobody.
status quota_ledger::lock_file() {
  clock::time_point until{};
  for (int tries = 0; !file_.try_lock_ledger(); ++tries) {
    if (errno != EAGAIN && errno != EACCES) {
      return make_system_error(errno, "the ledger cannot be locked");
    }
    if (tries == 0) until = clock::now() + lock_timeout;
    mutex.unlock();
    const bool is_over = clock::now() >= until;
    const status waited = is_over ? held_too_long() : status();
    if (!is_over) pause(tries);
    mutex.lock();
    STILLMAP_RETURN_IF_ERROR(waited);
  }
  return {};
}

void quota_ledger::pause(int tries) {
  if (tries < 64) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(tries, 1000)));
  }
}

status quota_ledger::create_table(std::uint64_t limit) {
  // A file without contents is new, unless participants use it.
  const bool in_use = file_.is_any_slot_locked();
  if (!in_use) STILLMAP_RETURN_IF_ERROR(file_.allocate());
  STILLMAP_RETURN_IF_ERROR(file_.read(table_));
  quota_header &h = table_.header;
  if (in_use && h.magic == 0) return truncated();
  if (h.magic == 0) {
    if (limit == 0) {
      return make_error(errc::invalid_argument,
                        "the quota does not exist, and no limit was given to create it");
    }
    h = {.magic = quota_table::magic, .limit = limit};
    STILLMAP_RETURN_IF_ERROR(file_.write_header(h));
  }
  if (limit != 0 && h.limit != limit) {
    return make_error(errc::invalid_argument, "the quota exists with another limit", limit, h.limit,
                      error_unit::bytes);
  }
  return {};
}

tl::unexpected<error> quota_ledger::truncated() {
  return make_error(errc::corrupt,
                    "another process has truncated or overwritten the file that is in use: end "
                    "the participants, remove the quota and create it again");
}

status quota_ledger::held_too_long() const {
  return with_host_memory([&]() -> status {
    const auto table = std::make_unique<quota_table>();
    STILLMAP_RETURN_IF_ERROR(file_.read(*table));
    const int holder = file_.find_ledger_holder(table->used());
    const auto e =
        make_error(errc::busy,
                   "a process that is stopped or does not run holds the ledger's lock: let it "
                   "continue (SIGCONT), or end it",
                   static_cast<std::uint64_t>(lock_timeout.count()), 0, error_unit::milliseconds);
    if (holder == 0) return e;
    return tl::unexpected(e.value().with({.found = "process " + std::to_string(holder)}));
  });
}

status quota_ledger::remove_dead(quota_table &t, std::size_t self) const {
  for (std::size_t i = 0; i < t.header.used; ++i) {
    quota_share &s = t.shares[i];
    if (!s.is_taken() || i == self || file_.is_slot_locked(i)) continue;
    const std::uint32_t process = s.holding.process;
    const std::uint64_t held = s.reserved();
    s = {};
    t.exchanges[i] = {};
    STILLMAP_RETURN_IF_ERROR(file_.write_slot(i, s, t.exchanges[i]));
    quota_bell::remove(path_, i);
    STILLMAP_RETURN_IF_ERROR(
        note(t, {.bytes = held, .action = quota_action::left, .process = process}));
  }
  return {};
}

status quota_ledger::note(quota_table &t, quota_record e) const {
  e.time = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::system_clock::now().time_since_epoch())
                                          .count());
  return file_.add_event(t.header, e);
}

}  // namespace stillmap
