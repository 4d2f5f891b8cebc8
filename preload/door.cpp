#include "preload/door.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>

namespace stillmap::preload {

constinit thread_local door::thread_calls *door::mine = nullptr;
constinit std::atomic<std::uint32_t> door::closed{0};
constinit std::atomic<bool> door::fence_in_calls{true};

namespace {

constinit std::atomic<door::thread_calls *> all_threads{nullptr};

// Where there is no memory for a thread's own: its calls are counted with those of others like it, by stores
// that may be lost. The door then does not close.
constinit door::thread_calls shared_calls;
constinit std::atomic<bool> uncounted{false};

// Of threads that pass: always within a call, whatever stores are lost. Not among all_threads.
constinit door::thread_calls passing{.under_way = 1U << 31};

bool barrier(int command) noexcept {
  return ::syscall(SYS_membarrier, command, 0, 0) == 0;
}

door::thread_calls *free_record() noexcept {
  for (door::thread_calls *c = all_threads.load(std::memory_order_acquire); c != nullptr;
       c = c->next) {
    bool expected = false;
    if (!c->taken.load(std::memory_order_relaxed) &&
        c->taken.compare_exchange_strong(expected, true, std::memory_order_acquire)) {
      return c;
    }
  }
  // A page of records at once, from the kernel: the program's malloc may be what calls the driver.
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void *const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  auto *const records = static_cast<door::thread_calls *>(page);
  const std::size_t count = bytes / sizeof(door::thread_calls);
  for (std::size_t i = 0; i < count; ++i) {
    ::new (static_cast<void *>(records + i)) door::thread_calls;
    records[i].next = i + 1 < count ? records + i + 1 : nullptr;
  }
  records[0].taken.store(true, std::memory_order_relaxed);
  door::thread_calls *first = all_threads.load(std::memory_order_relaxed);
  do {
    records[count - 1].next = first;
  } while (!all_threads.compare_exchange_weak(first, records, std::memory_order_release));
  return records;
}

// The clock of std::chrono, without its library.
std::chrono::steady_clock::time_point now() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::chrono::steady_clock::time_point(std::chrono::seconds(t.tv_sec) +
                                               std::chrono::nanoseconds(t.tv_nsec));
}

void futex(std::atomic<std::uint32_t> &word, int operation, std::uint32_t value) noexcept {
  ::syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

bool calls_under_way() noexcept {
  for (const door::thread_calls *c = all_threads.load(std::memory_order_acquire); c != nullptr;
       c = c->next) {
    if (c->under_way.load(std::memory_order_acquire) != 0) return true;
  }
  return uncounted.load(std::memory_order_acquire);
}

}  // namespace

// Where there is no key left, a thread's record stays its own.
class door::leaving_key {
 public:
  static void set(thread_calls *calls) noexcept {
    static constinit pthread_once_t once = PTHREAD_ONCE_INIT;
    ::pthread_once(&once, [] { there = ::pthread_key_create(&key, &leave_thread) == 0; });
    if (there) ::pthread_setspecific(key, calls);
  }

 private:
  static inline constinit pthread_key_t key{};
  static inline constinit bool there = false;
};

door::thread_calls *door::enter_thread() noexcept {
  mine = free_record();
  if (mine == nullptr) {
    uncounted.store(true, std::memory_order_release);
    return mine = &shared_calls;
  }
  // By a key, whose destructor runs behind those of thread_local objects, which may still call, and once more where
  // that has happened again.
  leaving_key::set(mine);
  return mine;
}

// Gives a thread's record to a later thread. A thread that was cancelled within a call has not left it.
void door::leave_thread(void *calls) noexcept {
  mine = nullptr;
  auto *const left = static_cast<thread_calls *>(calls);
  left->under_way.store(0, std::memory_order_relaxed);
  left->taken.store(false, std::memory_order_release);
}

void door::let_this_thread_pass() noexcept {
  mine = &passing;
}

// The threads of the parent are not here to end their calls, and nobody would open the door.
void door::become_child() noexcept {
  closed.store(0, std::memory_order_relaxed);
  for (thread_calls *c = all_threads.load(std::memory_order_acquire); c != nullptr; c = c->next) {
    if (c == mine) continue;
    c->under_way.store(0, std::memory_order_relaxed);
    c->taken.store(false, std::memory_order_relaxed);
  }
}

void door::prepare() noexcept {
  if (barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
    fence_in_calls.store(false, std::memory_order_relaxed);
  ::pthread_atfork(nullptr, nullptr, [] { become_child(); });
}

bool door::close(std::chrono::steady_clock::time_point deadline,
                 const std::atomic<bool> &cancelled) noexcept {
  closed.store(1, std::memory_order_relaxed);
  if (fence_in_calls.load(std::memory_order_relaxed)) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else if (!barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    // Forbidden since prepare(), as by a filter of system calls. Once calls under way have ended, each has a fence.
    fence_in_calls.store(true, std::memory_order_relaxed);
    open();
    return false;
  }
  while (calls_under_way()) {
    if (cancelled.load(std::memory_order_relaxed) || now() >= deadline) {
      open();
      return false;
    }
    const timespec a_moment{0, 50'000};
    ::nanosleep(&a_moment, nullptr);
  }
  return true;
}

void door::open() noexcept {
  closed.store(0, std::memory_order_release);
  futex(closed, FUTEX_WAKE, INT_MAX);
}

void door::wait(thread_calls &calls) noexcept {
  do {
    calls.under_way.store(0, std::memory_order_release);
    while (closed.load(std::memory_order_acquire) != 0) futex(closed, FUTEX_WAIT, 1);
    calls.under_way.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } while (closed.load(std::memory_order_relaxed) != 0);
}

}  // namespace stillmap::preload
